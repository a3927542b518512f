"""Ctrl-C: the first asks to stop, the second ends k3ctl and its own children at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from k3ctl.errors import ExitCode
from k3ctl.stop import StopFlag


@contextmanager
def stop_on_signal(stop: StopFlag, say: Callable[[str], None]) -> Iterator[None]:
    """Own SIGINT, SIGTERM and SIGHUP while the block runs; previous handlers come back afterwards."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            end_children(os.getpid())
            os._exit(ExitCode.INTERRUPTED)
        stop.set()
        say("stopping: no new work is started; press Ctrl-C again to leave at once")

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, children before grandchildren; processes that end meanwhile are left out."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents.setdefault(int(stat.rsplit(")", 1)[1].split()[1]), []).append(int(entry.name))
    found: list[int] = []
    level = [pid]
    while level:
        level = [child for parent in level for child in parents.get(parent, [])]
        found.extend(level)
    return found


def end_children(pid: int) -> None:
    """SIGKILL every process below `pid`: ansible's workers, ssh clients. Nothing on the hosts is touched."""
    for child in descendants(pid):
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            continue
