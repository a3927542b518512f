"""`probe`: what this host says about itself, in one JSON object. Reads only.

All collectors run side by side, each in a process of its own with its own time limit: a call into a wedged GPU driver
cannot be interrupted from within, and a hang is itself a fact. A section of the reply is {"value": {...}, "seconds": s}
or {"error": "timeout" | "failed", "detail": text, "seconds": s}.

Payload, all optional: root, sysfs_root, nvml_library_path, disk, ports, peers, units (see the collectors), `collectors`
(names; all when left out) and `limits_s` (seconds by collector).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import selectors
import signal
import time
from typing import Any, NoReturn

SCHEMA = 1
COLLECTORS = ("host", "limits", "disk", "network", "names", "clock", "gpus", "hcas", "services")
LIMIT_S = 5.0
# The first NVML call after boot initialises every GPU when no persistence daemon holds them: seconds on eight GPUs.
LIMITS_S = {"gpus": 10.0}
_REAP_S = 0.2


class _Child:
    """One collector under way: its pid, the read end of its pipe, what came so far and when it must have ended."""

    def __init__(self, name: str, pid: int, pipe: int, limit: float) -> None:
        self.name = name
        self.pid = pid
        self.pipe = pipe
        self.limit = limit
        self.began = time.monotonic()
        self.text = b""

    def left(self) -> float:
        return self.began + self.limit - time.monotonic()

    def seconds(self) -> float:
        return round(time.monotonic() - self.began, 3)


def run(payload: dict[str, Any]) -> dict[str, Any]:
    """Run the collectors; the reply holds `started` and `ended` (this host's clock) and one section per collector."""
    started = time.time()
    names = payload.get("collectors") or COLLECTORS
    limits = payload.get("limits_s") or {}
    sections: dict[str, Any] = {}
    children = []
    for name in names:
        if name not in COLLECTORS:
            sections[name] = _error("failed", "there is no collector of this name", 0.0)
            continue
        limit = float(limits.get(name, LIMITS_S.get(name, LIMIT_S)))
        children.append(_start(name, payload, limit))
    sections.update(_gather(children))
    return {"schema": SCHEMA, "started": started, "ended": time.time(), "sections": sections}


def _error(kind: str, detail: str, seconds: float) -> dict[str, Any]:
    return {"error": kind, "detail": detail, "seconds": seconds}


def _start(name: str, request: dict[str, Any], limit: float) -> _Child:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _child(name, request, write)
    os.close(write)
    os.set_blocking(read, False)
    return _Child(name, pid, read, limit)


def _child(name: str, request: dict[str, Any], pipe: int) -> NoReturn:
    """The collector's own process; never returns.

    It gives up stdin, stdout and stderr: a collector that cannot be killed would keep the SSH channel open with them.
    Its own session lets the parent end it together with the tools that it started.
    """
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        module = importlib.import_module("k3ctl.node.probes." + name)
        reply = json.dumps({"value": module.collect(request)}, allow_nan=False)
    except BaseException as error:
        reply = json.dumps({"error": "failed", "detail": _reason(error)})
    try:
        data = reply.encode()
        while data:
            data = data[os.write(pipe, data) :]
    finally:
        os._exit(0)


def _reason(error: BaseException) -> str:
    from k3ctl.node.probes.source import CannotTell  # noqa: PLC0415  the parent needs nothing of it

    text = str(error) or type(error).__name__
    return text if isinstance(error, CannotTell) else "%s: %s" % (type(error).__name__, text)


def _gather(children: list[_Child]) -> dict[str, Any]:
    """Read every child until it ends or its time is up. Returns name -> section."""
    sections: dict[str, Any] = {}
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.pipe, selectors.EVENT_READ, child)
        while selector.get_map():
            open_ = [key.data for key in selector.get_map().values()]
            for child in open_:
                if child.left() <= 0:
                    selector.unregister(child.pipe)
                    sections[child.name] = _timed_out(child)
            wait = min([child.left() for child in open_ if child.name not in sections] or [0.0])
            for key, _ in selector.select(max(wait, 0.0)) if selector.get_map() else ():
                child = key.data
                data = os.read(child.pipe, 1 << 16)
                child.text += data
                if not data:
                    selector.unregister(child.pipe)
                    sections[child.name] = _ended(child)
    return sections


def _timed_out(child: _Child) -> dict[str, Any]:
    os.close(child.pipe)
    for end in (os.killpg, os.kill):  # the child alone too: it may not have got as far as its own session
        with contextlib.suppress(OSError):
            end(child.pid, signal.SIGKILL)
    _reap(child.pid)
    return _error("timeout", "no answer within %g s" % child.limit, child.seconds())


def _ended(child: _Child) -> dict[str, Any]:
    os.close(child.pipe)
    status = _reap(child.pid)
    try:
        section: dict[str, Any] = json.loads(child.text.decode())
        section["seconds"] = child.seconds()
        return section
    except (ValueError, TypeError):
        how = "its process ended without an answer"
        if status is not None and os.WIFSIGNALED(status):
            how = "its process was ended by signal %d" % os.WTERMSIG(status)
        return _error("failed", how, child.seconds())


def _reap(pid: int) -> int | None:
    """The exit status, or None. Never waits for long: a process inside a wedged driver dies only when that returns."""
    until = time.monotonic() + _REAP_S
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        if time.monotonic() >= until:
            return None
        time.sleep(0.005)
