"""The end of a file and of a stage: a proven part gets its final name, a proven stage its COMPLETE record."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional

from k3ctl.node.leases import FileState
from k3ctl.node.stagefolder import SCHEMA, Folder, linked_parent, now_text, stat_of, sync_folder


def seal(folder: Folder, file: FileState) -> Dict[str, Any]:
    """Give a proven part its final name, durably; returns the record (size, mtime_ns, inode). Raises OSError."""
    final = folder.final(file.path)
    link = linked_parent(folder.dest, file.path)
    if link:
        raise OSError("%s is a symbolic link: k3ctl writes to real folders only" % link)
    fd = file.open(folder.part(file.number))
    with file.io:
        os.fchmod(fd, 0o644)
        os.fsync(fd)
    file.close()
    made = os.path.dirname(final)
    os.makedirs(made, mode=0o755, exist_ok=True)
    os.replace(folder.part(file.number), final)
    while True:
        sync_folder(made)
        if made == folder.dest:
            break
        made = os.path.dirname(made)
    return dict(stat_of(final) or {}, f=file.number, how="fetched")


def complete_record(manifest: Dict[str, Any], files: List[FileState]) -> Dict[str, Any]:
    """COMPLETE.json: what was proven, and what each file looked like then."""
    listed = []
    for file in files:
        record = file.sealed or {}
        listed.append(
            {
                "path": file.path,
                file.kind: file.digest,
                "size": record["size"],
                "mtime_ns": record["mtime_ns"],
                "inode": record["inode"],
                "how": record["how"],
            }
        )
    return {
        "schema": SCHEMA,
        "id": manifest["id"],
        "repo": manifest["repo"],
        "commit": manifest["commit"],
        "endpoint": manifest["endpoint"],
        "total": manifest["total"],
        "files": listed,
        "time": now_text(),
        "tool": "k3ctl",
    }


def still_true(old: Optional[Dict[str, Any]], new: Dict[str, Any]) -> bool:
    """True when an earlier COMPLETE record says the same of every file: then its time of proof stands."""
    if old is None or old.get("id") != new["id"]:
        return False
    keys = ("path", "size", "mtime_ns", "inode")
    seen = [tuple(f.get(k) for k in keys) for f in old.get("files", [])]
    return seen == [tuple(f[k] for k in keys) for f in new["files"]]
