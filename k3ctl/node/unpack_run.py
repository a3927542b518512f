"""`k3node unpack-run JOB.json`: fetch one archive, prove it, unpack it, try it, and only then say that it is there.

A job: {name, digest (sha256), bytes, url, path, program (must exist in it, relative), need_bytes, self_test: {argv,
timeout_s}, wait_tools_s, limits, proxies}. The archive and all state lie in <folder of path>/.k3work/<name of path>/.
Exit status as fetch-run's, and 8 when the archive or what is in it does not work.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List

from k3ctl.node.archive import BadArchive, missing_tools, unpack
from k3ctl.node.engine import Engine
from k3ctl.node.fetch_run import EXIT, LOCKED
from k3ctl.node.space import free_bytes
from k3ctl.node.stagefolder import (
    SCHEMA,
    Folder,
    LockHeld,
    StageLock,
    boot_id,
    manifest_id,
    now_text,
    read_json,
    sync_folder,
    write_json,
)

COMPLETE = ".k3ctl-complete.json"
PARTIAL = ".k3ctl-partial.json"
ARCHIVE = "archive"
PIECE = 16 * 1024 * 1024


class Unusable(Exception):
    """The environment cannot be put in place; `code` for the status."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


def work_folder(path: str) -> str:
    """Where the archive and the state of one environment lie while it is made."""
    return os.path.join(os.path.dirname(path), ".k3work", os.path.basename(path))


def manifest_for(job: Dict[str, Any]) -> Dict[str, Any]:
    """The archive as a stage of one file."""
    entry = {"path": ARCHIVE, "size": job["bytes"], "sha256": job["digest"], "git_sha1": None}
    manifest = {"schema": SCHEMA, "repo": "runtime/" + job["name"], "commit": job["digest"][:40], "piece": PIECE}
    manifest.update(endpoint=job["url"], files=[entry], total=job["bytes"])
    manifest["id"] = manifest_id(manifest)
    return manifest


def in_place(job: Dict[str, Any]) -> bool:
    """True when the environment is there, whole and tried."""
    complete = read_json(os.path.join(job["path"], COMPLETE))
    return complete is not None and complete.get("digest") == job["digest"]


def main(argv: List[str]) -> int:
    """Run one job to its end."""
    job = read_json(argv[0]) if len(argv) == 1 else None
    if job is None:
        sys.stderr.write("usage: k3node unpack-run JOB.json (a readable job)\n")
        return 2
    work = work_folder(job["path"])
    os.makedirs(work, mode=0o755, exist_ok=True)
    try:
        lock = StageLock(os.path.join(work, "lock"))
    except LockHeld as held:
        sys.stderr.write("%s\n" % held)
        return LOCKED
    try:
        return Unpacker(job, work).run()
    finally:
        lock.release()


class Unpacker:
    """One run; the caller holds the lock of the work folder."""

    def __init__(self, job: Dict[str, Any], work: str) -> None:
        self.job = job
        self.work = work
        self.path = job["path"]
        self.stop = threading.Event()
        self.told = 0.0
        manifest = manifest_for(job)
        self.folder = Folder(work, manifest["id"])
        self.stage = {
            "manifest": manifest,
            "dest": work,
            "sources": [{"kind": "url", "url": job["url"]}],
            "connections": 4,
            "limits": job.get("limits", {}),
            "proxies": job.get("proxies", {}),
        }
        if "free_bytes" in job:
            self.stage["free_bytes"] = job["free_bytes"]

    def run(self) -> int:
        """All steps that are not done yet; the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: self.stop.set())
        if in_place(self.job):
            self.tell("complete", 2 * self.job["bytes"], "")
            return 0
        try:
            if not self._fetch():
                return 0
            if not self._unpack():
                self.tell("stopped", self.job["bytes"], "")
                return 0
            self._try()
        except Unusable as error:
            self.tell("failed", self.job["bytes"], "", code=error.code, reason=str(error))
            sys.stderr.write("failed: %s\n" % error)
            return EXIT.get(error.code, 8)
        self._finish()
        self.tell("complete", 2 * self.job["bytes"], "")
        return 0

    def tell(self, state: str, done: int, note: str, **more: Any) -> None:
        """Write status.json; half of the way is fetching, the other half unpacking (counted in archive bytes)."""
        status = {
            "schema": SCHEMA,
            "id": self.folder.id,
            "pid": os.getpid(),
            "boot_id": boot_id(),
            "state": state,
            "code": "",
            "reason": "",
            "total": 2 * self.job["bytes"],
            "done": done,
            "files": 1,
            "sealed": int(state == "complete"),
            "rate": 0.0,
            "eta_s": None,
            "retries": 0,
            "recent": [],
            "note": note,
            "updated": time.time(),
        }
        status.update(more)
        write_json(os.path.join(self.work, "status.json"), status, durable=False)

    def _fetch(self) -> bool:
        """The archive, proven; False when stopped."""
        self._check_room()
        self.folder.make()
        engine = Engine(self.stage, self.folder, self.stop)
        engine.status_path = os.path.join(self.work, "status.json")
        engine.shape = self._shaped
        state = engine.run()
        if state == "failed" and engine.failure is not None:
            raise Unusable(engine.failure.code, str(engine.failure))
        return state == "complete"

    def _shaped(self, status: Dict[str, Any]) -> Dict[str, Any]:
        """The engine's status as a part of ours: complete there is half of the way here."""
        state = "running" if status["state"] == "complete" else status["state"]
        return dict(status, total=2 * self.job["bytes"], state=state, sealed=0, note=status["note"] or "fetching")

    def _check_room(self) -> None:
        held = [os.path.join(self.work, ARCHIVE), self.folder.part(0)]
        there = sum(os.stat(p).st_blocks * 512 for p in held if os.path.exists(p))
        need = int(self.job.get("need_bytes", 5 * self.job["bytes"])) - there
        free = int(self.job.get("free_bytes", free_bytes(self.work)))
        for left in (self.path, self.path + ".partial"):
            if os.path.exists(os.path.join(left, PARTIAL)):
                return  # a part of the room is taken by what an earlier try left and this one clears away
        if need > free:
            raise Unusable("space", "%d bytes needed at %s, %d free: %d short" % (need, self.work, free, need - free))

    def _unpack(self) -> bool:
        """Into <path>.partial, then under the final name, which the environment's own scripts point to."""
        archive, partial = os.path.join(self.work, ARCHIVE), self.path + ".partial"
        if not self._tools(archive):
            return False
        _clear(partial)
        os.makedirs(partial, mode=0o755)
        write_json(os.path.join(partial, PARTIAL), {"digest": self.job["digest"], "name": self.job["name"]})

        begun = time.monotonic()

        def moved(at: int) -> None:
            now = time.monotonic()
            if now - self.told > 0.5:
                self.told = now
                self.tell("running", self.job["bytes"] + at, "unpacking", rate=at / (now - begun))

        try:
            if not unpack(archive, partial, moved, lambda: not self.stop.is_set()):
                return False
        except BadArchive as error:
            raise Unusable("unpack", "the archive cannot be unpacked: %s" % error) from error
        if not os.path.lexists(os.path.join(partial, self.job["program"])):
            raise Unusable("unpack", "the archive holds no %s: it is not laid out as expected" % self.job["program"])
        self.tell("running", 2 * self.job["bytes"], "writing to disk")
        subprocess.run(["sync", "-f", partial], check=False, timeout=1800)
        _clear(self.path)
        os.replace(partial, self.path)
        sync_folder(os.path.dirname(self.path))
        return not self.stop.is_set()

    def _tools(self, archive: str) -> bool:
        """Provisioning installs zstd at the same time as this runs: wait for it, not for ever; False when stopped."""
        until = time.monotonic() + float(self.job.get("wait_tools_s", 300))
        while True:
            missing = missing_tools(archive)
            if not missing or self.stop.is_set():
                return not missing
            if time.monotonic() > until:
                raise Unusable("tools", "%s is not installed on this node" % " and ".join(missing))
            self.tell("running", self.job["bytes"], "waiting for %s, which provisioning installs" % missing[0])
            self.stop.wait(1.0)

    def _try(self) -> None:
        """Run the environment's own program once, so that a broken one shows here and not at the launch."""
        test = self.job["self_test"]
        self.tell("running", 2 * self.job["bytes"], "trying it: %s" % " ".join(test["argv"]))
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": self.work, "LC_ALL": "C.UTF-8"}
        try:
            done = subprocess.run(
                test["argv"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                timeout=test["timeout_s"],
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Unusable(
                "selftest", "%s did not end in %s s" % (" ".join(test["argv"]), test["timeout_s"])
            ) from error
        except OSError as error:
            raise Unusable("selftest", "%s: %s" % (test["argv"][0], error.strerror)) from error
        if done.returncode != 0:
            said = done.stdout[-1500:].decode("utf-8", "replace").strip()
            raise Unusable("selftest", "%s ended with status %d: %s" % (" ".join(test["argv"]), done.returncode, said))

    def _finish(self) -> None:
        """The marker last; then what is needed no more goes."""
        record = {key: self.job[key] for key in ("digest", "name", "bytes")}
        write_json(os.path.join(self.path, COMPLETE), dict(record, time=now_text()))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path, PARTIAL))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.work, ARCHIVE))
        shutil.rmtree(self.folder.root, ignore_errors=True)


def _clear(path: str) -> None:
    """Remove what an earlier try left. A folder without k3ctl's own mark is somebody else's and stays."""
    if not os.path.lexists(path):
        return
    marks = [os.path.join(path, name) for name in (PARTIAL, COMPLETE)]
    if os.path.islink(path) or (os.listdir(path) and not any(os.path.exists(mark) for mark in marks)):
        raise Unusable("unpack", "%s exists and was not made by k3ctl: move it away" % path)
    shutil.rmtree(path)
