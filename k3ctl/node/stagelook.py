"""What is on disk of a stage, without changing or hashing anything."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Set

from k3ctl.node import journal
from k3ctl.node.leases import KEPT, FileState, Ledger
from k3ctl.node.resume import replay
from k3ctl.node.space import free_bytes, needed
from k3ctl.node.stagefolder import OWN, Folder, manifest_id, proven_elsewhere, read_json, stat_of, unchanged


def look(stage: Dict[str, Any]) -> Dict[str, Any]:
    """State of a stage {manifest, dest, reuse_roots}.

    state: complete (every file is the one that was proven), changed (complete once, but files are no longer those),
    partial, none. missing: bytes still to be fetched; reuse: bytes that another revision on this node can give;
    allocate: bytes that the disk must still give; free: what it has.
    """
    manifest = stage["manifest"]
    folder = Folder(stage["dest"], manifest["id"])
    reply: Dict[str, Any] = {"id": manifest["id"], "free": free_bytes(folder.dest), "changed": [], "proven_at": ""}
    reply["extra"] = extra_files(folder.dest, {f["path"] for f in manifest["files"]})
    complete = read_json(folder.own("COMPLETE.json"))
    if complete is not None and complete.get("id") == manifest["id"] == manifest_id(manifest):
        records = {r["path"]: r for r in complete["files"]}
        changed = [
            f["path"]
            for f in manifest["files"]
            if not unchanged(records.get(f["path"], {}), folder.final(f["path"]))
            or records[f["path"]]["size"] != f["size"]
        ]
        if not changed:
            return dict(reply, state="complete", missing=0, reuse=0, allocate=0, proven_at=complete["time"])
        reply["changed"] = changed
    files = _files(folder, manifest)
    missing = sum(f.size - f.there() for f in files if not f.sealed)
    reuse = _reusable(folder.dest, [f for f in files if not f.sealed], stage.get("reuse_roots", []))
    begun = os.path.isdir(folder.root)
    reply["state"] = "changed" if reply["changed"] else ("partial" if begun else "none")
    return dict(reply, missing=missing - reuse, reuse=reuse, allocate=max(0, needed(folder, files, 0) - reuse))


def _files(folder: Folder, manifest: Dict[str, Any]) -> List[FileState]:
    """The files with what the journal proves of them."""
    files = Ledger(manifest["files"], manifest["piece"], 1).files
    found, _torn = journal.read(folder.own("journal"))
    sealed = replay(found, files)
    for file in files:
        record = sealed.get(file.number)
        if record is not None and unchanged(record, folder.final(file.path)):
            file.sealed = record
            continue
        part = stat_of(folder.part(file.number))
        if part is None or part["size"] != file.size:
            file.void()
    return files


def _reusable(dest: str, files: List[FileState], roots: List[str]) -> int:
    """Bytes of files that complete stages of other revisions hold."""
    wanted = {(f.kind, f.digest): f for f in files if f.pieces.count(KEPT) < len(f.pieces)}
    total = 0
    for _path, record in proven_elsewhere(dest, roots) if wanted else ():
        for kind in ("sha256", "git_sha1"):
            file = wanted.pop((kind, str(record.get(kind) or "-")), None)
            total += file.size - file.there() if file else 0
    return total


def extra_files(dest: str, known: Set[str]) -> List[str]:
    """Files in the folder that the manifest does not know (an engine may load them); the first 20."""
    found: List[str] = []
    for at, folders, names in os.walk(dest):
        if OWN in folders:
            folders.remove(OWN)
        relative = os.path.relpath(at, dest)
        found += [p for p in (os.path.normpath(os.path.join(relative, n)) for n in names) if p not in known]
        if len(found) > 20:
            break
    return sorted(found)[:20]
