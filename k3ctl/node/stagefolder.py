"""The folder of a stage on a node: names, the manifest, records of proven files, the lock.

<dest>/                             final files, real files, no links
<dest>/.k3stage/<id>/manifest.json  what must be there
<dest>/.k3stage/<id>/lock           POSIX lock and who holds it
<dest>/.k3stage/<id>/journal        what is on disk already
<dest>/.k3stage/<id>/parts/<n>.part unfinished files, preallocated
<dest>/.k3stage/<id>/status.json    how far it has come, for whoever asks
<dest>/.k3stage/<id>/events.jsonl   what happened, bounded
<dest>/.k3stage/<id>/job.json       what the agent was asked to do (0600: may hold the hub token), gone at the end
<dest>/.k3stage/<id>/COMPLETE.json  last thing written: every file with digest, size, mtime and inode
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import json
import os
import socket
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

OWN = ".k3stage"
SCHEMA = 1


class Folder:
    """Paths of one stage."""

    def __init__(self, dest: str, stage_id: str) -> None:
        self.dest = os.path.normpath(dest)
        self.id = stage_id
        self.root = os.path.join(self.dest, OWN, stage_id)
        self.parts = os.path.join(self.root, "parts")

    def own(self, name: str) -> str:
        """A file of the stage's own."""
        return os.path.join(self.root, name)

    def part(self, number: int) -> str:
        """The unfinished form of file number `number`."""
        return os.path.join(self.parts, "%05d.part" % number)

    def final(self, path: str) -> str:
        """Where a file of the manifest ends up."""
        return os.path.join(self.dest, *path.split("/"))

    def make(self) -> None:
        """Create the folders."""
        os.makedirs(self.parts, mode=0o755, exist_ok=True)


def manifest_id(manifest: Dict[str, Any]) -> str:
    """sha256 of the canonical JSON of what the manifest says; k3ctl.staging.manifest computes the same."""
    body = {key: manifest[key] for key in ("schema", "repo", "commit", "piece")}
    body["files"] = [{key: f[key] for key in ("path", "size", "sha256", "git_sha1")} for f in manifest["files"]]
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def refused_path(path: str) -> str:
    """Why a path must not be written to, or nothing: the agent does not lean on the controller's check alone."""
    parts = path.split("/")
    if not path or path.startswith("/") or "\0" in path or any(p in ("", ".", "..") for p in parts):
        return "not a plain relative path"
    if parts[0].lower() == OWN:
        return "inside of k3ctl's own folder"
    return ""


def linked_parent(dest: str, path: str) -> str:
    """The first folder between dest and the file that is a symbolic link, or nothing."""
    at = dest
    for part in path.split("/")[:-1]:
        at = os.path.join(at, part)
        if os.path.islink(at):
            return at
    return ""


def write_json(path: str, value: Any, mode: int = 0o644, *, durable: bool = True) -> None:
    """Write a JSON file atomically; `durable` means on disk, name included, when this returns."""
    temporary = "%s.%d.tmp" % (path, os.getpid())
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), mode)
        json.dump(value, file, sort_keys=True)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    os.replace(temporary, path)
    if durable:
        sync_folder(os.path.dirname(path))


def read_json(path: str) -> Optional[Dict[str, Any]]:
    """A JSON object from a file; None when it is not there or is no JSON object."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def sync_folder(path: str) -> None:
    """Make names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def now_text() -> str:
    """The time in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def boot_id() -> str:
    """Which boot of this machine this is."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def stat_of(path: str) -> Optional[Dict[str, int]]:
    """Size, mtime and inode of a regular file; None for anything else (links too)."""
    try:
        st = os.lstat(path)
    except OSError:
        return None
    if (st.st_mode & 0o170000) != 0o100000:
        return None
    return {"size": st.st_size, "mtime_ns": st.st_mtime_ns, "inode": st.st_ino}


def unchanged(record: Dict[str, Any], path: str) -> bool:
    """True when the file is the very one that was proven: size, mtime and inode are the same."""
    found = stat_of(path)
    return found is not None and all(found[key] == record.get(key) for key in found)


def proven_elsewhere(dest: str, roots: List[str]) -> Iterator[Tuple[str, Dict[str, Any]]]:
    """(path, record) of files that other complete stages hold unchanged: earlier revisions beside this one."""
    for root in roots:
        for name in sorted(glob.glob(os.path.join(glob.escape(root), "*", OWN, "*", "COMPLETE.json"))):
            other = os.path.dirname(os.path.dirname(os.path.dirname(name)))
            complete = read_json(name)
            if complete is None or os.path.realpath(other) == os.path.realpath(dest):
                continue
            for record in complete.get("files", []):
                path = os.path.join(other, *str(record.get("path", "")).split("/"))
                if not refused_path(str(record.get("path", ""))) and unchanged(record, path):
                    yield path, record


class LockHeld(Exception):
    """Another process works on this stage; `holder` is what it wrote about itself."""

    def __init__(self, holder: Dict[str, Any]) -> None:
        super().__init__("lock held")
        self.holder = holder

    def __str__(self) -> str:
        return "another agent works on this stage: pid %s on %s since %s" % (
            self.holder.get("pid", "?"),
            self.holder.get("host", "?"),
            self.holder.get("since", "?"),
        )


class StageLock:
    """A POSIX lock (not flock: on some shared file systems that holds for one host only), freed by the kernel at death.

    The process must never open the lock file a second time: closing any descriptor of it would free the lock.
    """

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _holder(os.pread(self.fd, 4096, 0))
            os.close(self.fd)
            raise LockHeld(holder) from error
        self.taken_over = _holder(os.pread(self.fd, 4096, 0))
        me = {"pid": os.getpid(), "boot_id": boot_id(), "host": socket.gethostname(), "since": now_text()}
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, json.dumps(me).encode(), 0)

    def release(self) -> None:
        """Leave in good order: nobody's name stays in the file."""
        os.ftruncate(self.fd, 0)
        os.close(self.fd)


def held_by(path: str) -> str:
    """Who holds a lock file now, as text; nothing when nobody does. Never call it in the process that holds it."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return str(LockHeld(_holder(os.pread(fd, 4096, 0))))
    finally:
        os.close(fd)
    return ""


def _holder(text: bytes) -> Dict[str, Any]:
    try:
        value = json.loads(text.decode() or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
