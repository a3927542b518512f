"""Where playbooks and roles are: inside the installed package, or in the checkout beside it."""

from __future__ import annotations

from pathlib import Path

import k3ctl


def content_root() -> Path:
    """The folder that holds playbooks/ and roles/. Raises FileNotFoundError when the installation is broken."""
    package = Path(k3ctl.__file__).resolve().parent
    for root in (package / "_content", package.parent):
        if (root / "playbooks").is_dir() and (root / "roles").is_dir():
            return root
    raise FileNotFoundError(f"no playbooks/ and roles/ beside {package}: the installation is incomplete")
