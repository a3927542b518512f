"""Room on the file systems of the folders that the plan writes to."""

from __future__ import annotations

import os
from typing import Any

from k3ctl.node.probes.source import text, under

_MOST_ENTRIES = 50_000


def collect(request: dict[str, Any]) -> dict[str, Any]:
    """Request: root, disk = [{"name", "path", "holds": [folders to count], "marker": file}]. Sizes in bytes.

    `at` is the nearest folder that exists, `held_bytes` what the `holds` folders take on disk already (None when there
    are too many files to count), `complete` whether the marker file exists.
    """
    root = request.get("root") or "/"
    mounts = mount_table(text(under(root, "/proc/self/mountinfo")) or "")
    return {"paths": [_path(wanted, mounts) for wanted in request.get("disk") or []]}


def _path(wanted: dict[str, Any], mounts: list[tuple[str, str, bool]]) -> dict[str, Any]:
    at = nearest(wanted["path"])
    space = os.statvfs(at)
    marker = wanted.get("marker")
    kind, read_only = mount_of(os.path.realpath(at), mounts)
    return {
        "name": wanted["name"],
        "path": wanted["path"],
        "at": at,
        "device": os.stat(at).st_dev,
        "fs_type": kind,
        "read_only": read_only if read_only is not None else bool(space.f_flag & os.ST_RDONLY),
        "total_bytes": space.f_blocks * space.f_frsize,
        "free_bytes": space.f_bavail * space.f_frsize,
        # File systems without a fixed inode table (btrfs, some overlays) report 0 of 0.
        "free_inodes": space.f_favail if space.f_files else None,
        "held_bytes": held(wanted.get("holds") or []),
        "complete": os.path.isfile(marker) if marker else None,
    }


def nearest(path: str) -> str:
    """The path itself or its nearest parent that is a folder."""
    while not os.path.isdir(path):
        parent = os.path.dirname(path)
        if parent == path:
            return "/"
        path = parent
    return path


def held(folders: list[str]) -> int | None:
    """Bytes on disk of all files below the folders (holes do not count); None when there are too many to count."""
    total = seen = 0
    for folder in folders:
        for place, _, names in os.walk(folder):
            seen += len(names)
            if seen > _MOST_ENTRIES:
                return None
            for name in names:
                try:
                    total += os.lstat(os.path.join(place, name)).st_blocks * 512
                except OSError:  # a download renames its parts while we look
                    continue
    return total


def mount_table(mountinfo: str) -> list[tuple[str, str, bool]]:
    """/proc/self/mountinfo as [(mount point, type, read only)], in its order: a later line covers an earlier one."""
    table = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        words, kind = left.split(), right.split()
        if len(words) >= 6 and kind:
            point = words[4].replace("\\040", " ")
            table.append((point, kind[0], "ro" in words[5].split(",")))
    return table


def mount_of(path: str, table: list[tuple[str, str, bool]]) -> tuple[str | None, bool | None]:
    """(type, read only) of the mount that holds the path, or (None, None)."""
    best = -1
    found: tuple[str | None, bool | None] = (None, None)
    for point, kind, read_only in table:
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, found = len(point), (kind, read_only)
    return found
