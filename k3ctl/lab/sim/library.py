"""Builds the stand-in libnvidia-ml.so.1 with the machine's C compiler."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from k3ctl.errors import PhaseFailed, Problem

SOURCE = Path(__file__).with_name("nvml.c")
NAME = "libnvidia-ml.so.1"


def digest() -> str:
    """sha256 of the source: another source, another library."""
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()


def build(folder: Path, source: Path = SOURCE) -> Path:
    """Compile the library into the folder and return its path. Raises PhaseFailed when there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise PhaseFailed(
            Problem(
                what="the simulated GPUs need a C compiler",
                found="neither cc nor gcc on PATH",
                fix="install one, on Debian and Ubuntu: apt-get install gcc libc6-dev",
            )
        )
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / NAME
    part = folder / f".{NAME}.{os.getpid()}"
    argv = [compiler, "-shared", "-fPIC", "-O2", "-Wl,-soname," + NAME, "-o", str(part), str(source)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        part.unlink(missing_ok=True)
        raise PhaseFailed(
            Problem(
                what="the stand-in NVML library does not compile", found=" ".join(argv), evidence=done.stderr[-2000:]
            )
        )
    part.replace(target)
    return target
