"""Room on the node's disk: asked before the first byte, reserved by real preallocation."""

from __future__ import annotations

import errno
import os
from typing import List, Optional, Tuple

from k3ctl.node.leases import FileState
from k3ctl.node.stagefolder import Folder

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "lustre", "gpfs", "ceph", "beegfs", "glusterfs", "fuse.sshfs")


def free_bytes(path: str) -> int:
    """Bytes that root's services may still write on the file system of `path` or its nearest parent that exists."""
    while not os.path.exists(path) and path not in ("/", ""):
        path = os.path.dirname(path)
    st = os.statvfs(path or "/")
    return st.f_bavail * st.f_frsize


def file_system(path: str, mounts: str = "/proc/self/mounts") -> str:
    """Type of the file system that holds `path`, from the longest mount point that it lies under."""
    path = os.path.realpath(path)
    best: Tuple[int, str] = (-1, "")
    try:
        with open(mounts, encoding="utf-8", errors="replace") as file:
            lines: List[List[str]] = [line.split() for line in file]
    except OSError:
        return ""
    for fields in lines:
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        if path == point or path.startswith(point.rstrip("/") + "/"):
            best = max(best, (len(point), fields[2]))
    return best[1]


def needed(folder: Folder, files: List[FileState], reserve: int) -> int:
    """Bytes that are still to be allocated: unsealed files, less what their parts hold already, plus the reserve."""
    total = 0
    for file in files:
        if file.sealed:
            continue
        try:
            held = os.stat(folder.part(file.number)).st_blocks * 512
        except OSError:
            held = 0
        total += max(0, file.size - held)
    return total + (reserve if total else 0)


def preallocate(path: str, size: int) -> Optional[str]:
    """Make the part file `size` bytes long with its blocks reserved; says how: fallocate, or sparse if it must."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        now = os.fstat(fd)
        if size == 0 or (now.st_size == size and now.st_blocks * 512 >= size):
            return None
        try:
            os.posix_fallocate(fd, 0, size)
            return "fallocate"
        except OSError as error:
            if error.errno in NO_SPACE:
                raise
            os.ftruncate(fd, size)
            return "sparse"
    finally:
        os.close(fd)
