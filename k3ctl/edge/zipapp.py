"""Makes the node agent: one file of k3ctl/node and pynvml.py that any Python 3.8 runs."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from k3ctl.errors import InternalError, Problem

MAIN = """\
import sys

from k3ctl.node.__main__ import main

sys.exit(main(sys.argv))
"""
# The earliest time a zip entry can have: the bytes must not depend on when or where the file was made.
EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class NodeApp:
    """The agent's bytes and its name. `digest` is over names and contents, not over the archive: zlib versions differ,
    and an operator with another Python must not make every unit file change."""

    data: bytes
    digest: str  # 64 hex digits

    @property
    def name(self) -> str:
        """The file's name on a node."""
        return f"k3node-{self.digest[:12]}.pyz"


def node_app() -> NodeApp:
    """The agent of this installation. Raises InternalError when the installation lacks a part."""
    return pack(members())


def members() -> dict[str, bytes]:
    """Path inside the archive -> content. `k3ctl/__init__.py` is empty there: nodes have none of its imports."""
    files = {"__main__.py": MAIN.encode(), "k3ctl/__init__.py": b"", "pynvml.py": _source("pynvml")}
    package = _folder("k3ctl.node")
    for file in sorted(package.rglob("*.py")):
        files[f"k3ctl/node/{file.relative_to(package).as_posix()}"] = file.read_bytes()
    return files


def pack(files: Mapping[str, bytes]) -> NodeApp:
    """The same bytes for the same files: sorted, fixed times, fixed modes."""
    digest = hashlib.sha256()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in sorted(files.items()):
            digest.update(f"{path}\0{len(content)}\0".encode() + content)
            entry = zipfile.ZipInfo(path, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return NodeApp(buffer.getvalue(), digest.hexdigest())


def _folder(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise _broken(module)
    return Path(spec.submodule_search_locations[0])


def _source(module: str) -> bytes:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise _broken(module)
    return Path(spec.origin).read_bytes()


def _broken(module: str) -> InternalError:
    return InternalError(
        Problem(
            what="the installation of k3ctl is incomplete",
            found=f"no module {module}",
            expected="k3ctl with all of its requirements",
            fix="install k3ctl again",
        )
    )
