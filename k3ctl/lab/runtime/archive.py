"""Packs the environment: tar, zstd and sha256 in one pass."""

from __future__ import annotations

import hashlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from k3ctl.errors import Problem
from k3ctl.lab.process import LabFailed

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Packed:
    """Digest and size of an archive."""

    sha256: str
    bytes: int


def pack(folder: Path, target: Path) -> Packed:
    """Pack what is in the folder (names relative to it, owner root) into a .tar.zst; raises LabFailed."""
    tar_argv = ["tar", "--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "-C", str(folder), "."]
    digest, count = hashlib.sha256(), 0
    with (
        subprocess.Popen(tar_argv, stdout=subprocess.PIPE) as tar,
        subprocess.Popen(["zstd", "-q", "-3", "-T0"], stdin=tar.stdout, stdout=subprocess.PIPE) as zstd,
        target.open("wb") as out,
    ):
        if tar.stdout is None or zstd.stdout is None:
            raise AssertionError("pipes were asked for")
        tar.stdout.close()  # zstd holds it; so tar ends when zstd does
        while chunk := zstd.stdout.read(_CHUNK):
            digest.update(chunk)
            out.write(chunk)
            count += len(chunk)
        out.flush()
        os.fsync(out.fileno())
        failed = {name: p.wait() for name, p in (("tar", tar), ("zstd", zstd)) if p.wait()}
    if failed:
        found = ", ".join(f"{name}: status {status}" for name, status in failed.items())
        raise LabFailed(Problem(what="the serving environment could not be packed", found=found, file=str(target)))
    return Packed(digest.hexdigest(), count)


def size(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(p.lstat().st_size for p in folder.rglob("*") if not p.is_dir() or p.is_symlink())
