"""This program and others as programs: how the user calls k3ctl again, and running one to its end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def program() -> str:
    """`k3ctl` when it is on PATH, else the path of the one beside this Python, relative to the current folder."""
    if shutil.which("k3ctl"):
        return "k3ctl"
    beside = Path(sys.executable).parent / "k3ctl"
    return os.path.relpath(beside) if beside.exists() else "k3ctl"


def run(argv: list[str]) -> int:
    """Run a program on our own terminal to its end; its exit status."""
    return subprocess.run(argv, check=False).returncode
