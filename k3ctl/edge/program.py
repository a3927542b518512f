"""How the user can call this program again."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def program() -> str:
    """`k3ctl` when it is on PATH, else the path of the one beside this Python, relative to the current folder."""
    if shutil.which("k3ctl"):
        return "k3ctl"
    beside = Path(sys.executable).parent / "k3ctl"
    return os.path.relpath(beside) if beside.exists() else "k3ctl"
