"""Processes of this host, from /proc: whose they are, what they hold, and how to end them for certain."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from typing import Dict, Iterable, List, NamedTuple, Optional, Set

MARKER = "K3CTL_CLUSTER"
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class Process(NamedTuple):
    """One process. `ticks` is user + system time in clock ticks, `rss` bytes, `born` start time in ticks since boot."""

    pid: int
    parent: int
    state: str
    title: str
    ticks: int
    rss: int
    born: int


def prctl(option: int, value: int) -> None:
    """Linux prctl; silently nothing where it does not exist."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def read(pid: int) -> Optional[Process]:
    """What /proc says about one process; None when it is gone."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            stat = file.read().decode("utf-8", "replace")
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            cmdline = file.read()
    except OSError:
        return None
    name, _, rest = stat.partition("(")[2].rpartition(")")
    fields = rest.split()
    title = cmdline.replace(b"\0", b" ").decode("utf-8", "replace").strip() or "[%s]" % name
    page = os.sysconf("SC_PAGE_SIZE")
    return Process(
        pid=pid,
        parent=int(fields[1]),
        state=fields[0],
        title=title,
        ticks=int(fields[11]) + int(fields[12]),
        rss=int(fields[21]) * page,
        born=int(fields[19]),
    )


def everything() -> Dict[int, Process]:
    """All processes by pid."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            process = read(int(name))
            if process is not None:
                found[process.pid] = process
    return found


def descendants(root: int, table: Optional[Dict[int, Process]] = None) -> List[Process]:
    """All living descendants of `root`, without itself."""
    table = everything() if table is None else table
    children: Dict[int, List[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found, queue = [], list(children.get(root, []))
    while queue:
        pid = queue.pop()
        if table[pid].state != "Z":
            found.append(table[pid])
        queue.extend(children.get(pid, []))
    return found


def ancestors(pid: int, table: Dict[int, Process]) -> Set[int]:
    """The process itself, its parent, and so on up."""
    found: Set[int] = set()
    while pid in table and pid not in found:
        found.add(pid)
        pid = table[pid].parent
    return found


def marked(cluster: str) -> Set[int]:
    """Processes whose environment at their start carried our marker for this cluster.

    Programs that set their own title overwrite that memory, so that a missing marker proves nothing: the unit's cgroup
    is the other half of the proof.
    """
    wanted = ("%s=%s" % (MARKER, cluster)).encode("utf-8")
    found = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/environ" % name, "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.add(int(name))
        except OSError:
            continue
    return found


def in_unit(unit: str) -> Set[int]:
    """Processes in the cgroup of a system unit (v2, or the systemd hierarchy of v1)."""
    found: Set[int] = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/cgroup" % name, encoding="utf-8") as file:
                paths = [line.rstrip("\n").split(":", 2)[2] for line in file]
        except (OSError, IndexError):
            continue
        if any(unit in path.split("/") for path in paths):
            found.add(int(name))
    return found


def of_cluster(cluster: str, unit: str) -> Dict[int, Process]:
    """Living processes that belong to the unit or carry the cluster's marker, less this program and its parents."""
    table = everything()
    own = ancestors(os.getpid(), table)
    pids = (marked(cluster) | in_unit(unit)) - own
    return {pid: table[pid] for pid in pids if pid in table and table[pid].state != "Z"}


def end(processes: Iterable[Process], grace_s: float) -> List[Process]:
    """SIGTERM, wait up to `grace_s`, SIGKILL, wait 5 s; returns those that still live (uninterruptible)."""
    left = [p for p in processes if _signal(p, signal.SIGTERM if grace_s > 0 else signal.SIGKILL)]
    left = _wait(left, grace_s if grace_s > 0 else 5.0)
    if left and grace_s > 0:
        left = _wait([p for p in left if _signal(p, signal.SIGKILL)], 5.0)
    return left


def _signal(process: Process, number: int) -> bool:
    """Send a signal to this very process; False when it is gone (a reused pid has another start time)."""
    now = read(process.pid)
    if now is None or now.born != process.born or now.state == "Z":
        return False
    try:
        os.kill(process.pid, number)
    except OSError:
        return False
    return True


def _wait(processes: List[Process], seconds: float) -> List[Process]:
    until = time.monotonic() + seconds
    left = processes
    while left:
        reap()
        left = [p for p in left if _lives(p)]
        if not left or time.monotonic() > until:
            break
        time.sleep(0.05)
    return left


def _lives(process: Process) -> bool:
    now = read(process.pid)
    return now is not None and now.born == process.born and now.state != "Z"


def reap() -> None:
    """Collect ended children that were handed to us (we are a subreaper), but not those that subprocess waits for."""
    for process in everything().values():
        if process.parent == os.getpid() and process.state == "Z" and process.pid not in WAITED:
            with contextlib.suppress(OSError):
                os.waitpid(process.pid, os.WNOHANG)


WAITED: Set[int] = set()  # pids of children that subprocess.Popen itself waits for
