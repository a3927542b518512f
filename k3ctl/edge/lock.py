"""One operator at a time: a lock on this machine and one on the head node, both freed by the death of their holder."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from k3ctl.errors import AgentFailed, K3ctlError, LockHeld, Problem
from k3ctl.units import duration

FILE = "lock"
HEARTBEAT_S = 10.0
# The head frees the lock of a controller that is silent for this long (unplugged: no end of the connection to see).
SILENCE_S = 60.0
ANSWER_S = 20.0


@dataclass(frozen=True)
class Owner:
    """Who holds a lock. `command` is what was typed, without secrets (they are never in argv)."""

    user: str
    host: str
    pid: int
    command: str

    @classmethod
    def me(cls, command: str) -> Owner:
        """This process."""
        return cls(getpass.getuser(), socket.gethostname(), os.getpid(), command)


class Talk(Protocol):
    """A conversation with the lock process on the head."""

    def send(self, data: bytes) -> bool:
        """Write to its stdin; False when it is gone."""

    def line(self, timeout_s: float) -> str | None:
        """Its next line, or None."""

    def close(self) -> None:
        """End it and wait."""


# Starts the lock verb on the head with that payload as its first line.
Start = Callable[[Mapping[str, Any]], Talk]


class ClusterLock:
    """Holds the cluster for one changing command.

    `with ClusterLock(...) as note:` takes both locks; `note` says in one line whose lock was taken over, or is empty.
    The two steps also exist alone (`take_local`, `take_head`), for a command that connects first. Raises LockHeld.

    state_dir: the cluster's folder on this machine. start: see Start. path: the lock file on the head,
    in a folder that outlives `down`. on_lost: told once, in one line, when the head's lock is gone and held by another.
    """

    def __init__(
        self,
        state_dir: Path,
        start: Start,
        path: str,
        owner: Owner,
        *,
        on_lost: Callable[[str], None] = lambda _: None,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self._file = state_dir / FILE
        self._start = start
        self._path = path
        self._owner = owner
        self._on_lost = on_lost
        self._heartbeat_s = heartbeat_s
        self._handle: int | None = None
        self._talk: Talk | None = None
        self._ended = threading.Event()
        self._beat: threading.Thread | None = None

    def __enter__(self) -> str:
        try:
            return "; ".join(note for note in (self.take_local(), self.take_head()) if note)
        except BaseException:
            self.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    @property
    def on_head(self) -> bool:
        """True while the head's lock is held, as far as the last heartbeat knows."""
        return self._talk is not None

    def take_local(self) -> str:
        """Take the lock on this machine. Returns the note about a dead holder, or ''."""
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # flock and not lockf: it belongs to this open file, so two locks in one process exclude each other too.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = _parse(os.pread(handle, 65536, 0))
            os.close(handle)
            raise LockHeld(held(owner, time.time(), "on this machine")) from error
        self._handle = handle
        previous = _parse(os.pread(handle, 65536, 0))
        self._write({**asdict(self._owner), "since": time.time()})
        return taken_over(previous, time.time(), "on this machine") if previous is not None else ""

    def take_head(self) -> str:
        """Take the lock on the head node and keep it by heartbeats. Returns the note about a dead holder, or ''."""
        previous, now = self._acquire()
        self._beat = threading.Thread(target=self._keep, name="cluster-lock", daemon=True)
        self._beat.start()
        return taken_over(previous, now, "on the head node") if previous is not None else ""

    def release(self) -> None:
        """Give both back. The head frees its lock by itself when it cannot be told."""
        self._ended.set()
        if self._beat is not None:
            self._beat.join(ANSWER_S)
            self._beat = None
        if self._talk is not None:
            self._talk.send(b"release\n")
            self._talk.close()
            self._talk = None
        if self._handle is not None:
            os.ftruncate(self._handle, 0)
            os.close(self._handle)
            self._handle = None

    def _acquire(self) -> tuple[dict[str, Any] | None, float]:
        talk = self._start({"path": self._path, "owner": asdict(self._owner), "silence_s": SILENCE_S})
        line = talk.line(ANSWER_S)
        try:
            reply = json.loads(line or "")
            acquired, owner, now = bool(reply["acquired"]), reply["owner"], float(reply["now"])
        except (ValueError, KeyError, TypeError) as error:
            talk.close()
            raise AgentFailed(
                Problem(
                    what="the lock on the head node could not be taken",
                    found=f"no answer within {ANSWER_S:.0f} s" if line is None else f"an answer that is none: {line}",
                    expected="one JSON line from the node agent",
                    fix="run the same command again; if it stays, look at the head node's load and disk",
                )
            ) from error
        if not acquired:
            talk.close()
            raise LockHeld(held(owner, now, "on the head node"))
        self._talk = talk
        return owner, now

    def _keep(self) -> None:
        """Send heartbeats; take the lock again when its channel broke (the head rebooted, say)."""
        while not self._ended.wait(self._heartbeat_s):
            talk = self._talk
            if talk is not None and talk.send(b"\n"):
                continue
            if talk is not None:
                talk.close()
                self._talk = None
            try:
                self._acquire()
            except LockHeld as error:
                self._on_lost(f"the lock on the cluster was lost: {error.problems[0].found}")
                return
            except K3ctlError:
                continue  # not reachable now: the next beat tries again, and the phases say what they miss

    def _write(self, owner: Mapping[str, Any]) -> None:
        if self._handle is not None:
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, json.dumps(owner, sort_keys=True).encode(), 0)
            with contextlib.suppress(OSError):  # some file systems of home directories cannot
                os.fsync(self._handle)


def held(owner: Mapping[str, Any] | None, now: float, where: str) -> Problem:
    """Somebody else works on this cluster: who, since when, and how to go on. Pure."""
    return Problem(
        what="another k3ctl works on this cluster",
        found=f"{describe(owner, now)} ({where})",
        expected="one operator at a time",
        fix="wait until it has ended, or end it there with Ctrl-C; if it is dead or unplugged, its lock is free after "
        f"{SILENCE_S:.0f} s at the latest. `k3ctl status` and `k3ctl logs` need no lock",
    )


def taken_over(owner: Mapping[str, Any] | None, now: float, where: str) -> str:
    """The one line about a holder that died. Pure."""
    return f"took over the lock {where} of a dead holder: {describe(owner, now)}"


def describe(owner: Mapping[str, Any] | None, now: float) -> str:
    """`ann@laptop, pid 4242, `k3ctl up inventories/x`, since 2026-11-30 21:04:05 UTC (12m05s ago)`. Pure."""
    owner = owner or {}
    who = f"{owner.get('user', 'unknown')}@{owner.get('host', 'unknown')}"
    parts = [who, f"pid {owner.get('pid', '?')}", f"`{owner.get('command', '?')}`"]
    since = owner.get("since")
    if isinstance(since, int | float):
        day = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        parts.append(f"since {day} ({duration(max(0.0, now - since))} ago)")
    return ", ".join(parts)


def _parse(data: bytes) -> dict[str, Any] | None:
    if not data.strip():
        return None
    try:
        owner = json.loads(data)
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}
