"""`k3node gang --launch FILE`: main process of the unit. Runs torchrun, whose only child is `k3node rank`.

torchrun's elastic agents make the ranks of all nodes a gang: when one ends, all are restarted, without the controller.
This program starts it with a clean environment, forwards a stop, ends the unit for good on a crash loop, and never
leaves a process behind. systemd starts it again when it ends by itself.
"""

from __future__ import annotations

import collections
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import IO, Any, Deque, Dict, List, Optional

from k3ctl.node import attempts, ports, processes
from k3ctl.node.addresses import NoInterface, interface_of
from k3ctl.node.launchfile import CRASH_LOOP_STATUS, Launch, load, read_json, write_atomically
from k3ctl.node.rank import STOPPING

FAILED = 1
POLL_S = 0.5


def main(argv: List[str]) -> int:
    """Run the gang until it is stopped (0), fails (1, systemd starts it again) or loops (78, stays down)."""
    if len(argv) != 2 or argv[0] != "--launch":
        sys.stderr.write("usage: k3node gang --launch FILE\n")
        return 2
    return Gang(load(argv[1])).run()


def shim_argv(launch: Launch) -> List[str]:
    """How torchrun starts the rank: a copy of this agent, since a newer k3ctl may have removed the file by then."""
    python = launch.raw.get("shim_python") or sys.executable  # inside an image the host's path of Python is not there
    return [python, launch.state("k3node.pyz"), "rank", "--launch", launch.path]


def torchrun_environment(launch: Launch, base: Dict[str, str]) -> Dict[str, str]:
    """torchrun's environment: no proxies, no variables of another torchrun, the cluster's marker."""
    env = {
        key: value
        for key, value in base.items()
        if key not in launch.drop_env and not any(key.startswith(p) for p in launch.drop_env_prefixes)
    }
    env.update(launch.base_env)
    env["HOME"] = launch.home
    env.update(launch.torchrun_env)
    env[processes.MARKER] = launch.cluster
    return env


class Gang:
    """torchrun on this node, from its start to its end."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.stop_asked = threading.Event()
        self.recent: Deque[str] = collections.deque(maxlen=60)
        self.records = attempts.path_of(launch)
        self.started = time.time()
        self.torchrun: Optional[subprocess.Popen[bytes]] = None

    def run(self) -> int:
        """See the module."""
        processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self.stop_asked.set())
        os.makedirs(self.launch.home, mode=0o700, exist_ok=True)
        shutil.rmtree(self.launch.state("torchrun"), ignore_errors=True)
        shutil.copyfile(os.path.abspath(sys.argv[0]), self.launch.state("k3node.pyz"))
        self._unmark_stopping()
        attempts.close_lost(self.records, time.time())
        attempts.trim(self.records)
        if self._crash_loop():
            return self._end_for_good()
        self.attempts_before = self._count()
        problem = self._obstacle()
        if problem:
            return self._failed(problem)
        try:
            self._start()
        except OSError as error:
            return self._failed("torchrun could not be started: %s" % error)
        return self._watch()

    def _obstacle(self) -> str:
        """Why torchrun cannot work now, found before it says so in a hundred lines; empty when nothing is wrong."""
        try:
            interface_of(self.launch.address, self.launch.interface)
        except (NoInterface, OSError, ValueError) as error:
            return str(error)
        left = processes.of_cluster(self.launch.cluster, self.launch.unit)
        if left:
            processes.end(left.values(), 2.0)
        taken = ports.holders(self.launch.ports)
        if taken:
            return "; ".join("port %(port)d is held by pid %(pid)d: %(command)s" % holder for holder in taken)
        return ""

    def _start(self) -> None:
        argv = [*self.launch.torchrun_argv, "--no-python", *shim_argv(self.launch)]
        self.torchrun = subprocess.Popen(
            argv,
            env=torchrun_environment(self.launch, dict(os.environ)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - no thread runs yet
        )
        processes.WAITED.add(self.torchrun.pid)
        assert self.torchrun.stdout is not None  # noqa: S101 - for the type checker
        threading.Thread(target=self._forward, args=(self.torchrun.stdout,), daemon=True).start()
        self._write("meeting", "")

    def _forward(self, source: IO[bytes]) -> None:
        """torchrun's own words go to the journal; the last of them are kept for the status."""
        for line in iter(source.readline, b""):
            text = line.decode("utf-8", "replace").rstrip("\n")
            self.recent.append(text)
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def _watch(self) -> int:
        assert self.torchrun is not None  # noqa: S101 - for the type checker
        seen = 0.0
        while True:
            status = self.torchrun.poll()
            if status is not None:
                return self._torchrun_ended(status)
            if self.stop_asked.wait(POLL_S):
                return self._stopped()
            changed = _mtime(self.records)
            if changed != seen:
                seen = changed
                if self._given_up():
                    self._end_torchrun()
                    return self._end_for_good()
                if self._count() > self.attempts_before:
                    self._write("formed", "")
            processes.reap()

    def _torchrun_ended(self, status: int) -> int:
        self._end_torchrun()
        if self._crash_loop():
            return self._end_for_good()
        how = "with status %d" % status if status >= 0 else "by signal %d" % -status
        said = _last_error(list(self.recent))
        return self._failed("torchrun ended %s%s" % (how, ": " + said if said else ""))

    def _stopped(self) -> int:
        """The operator (systemctl stop) wants it to end: the shim must know before it gets its own SIGTERM."""
        write_atomically(self.launch.state(STOPPING), {"at": time.time()})
        self._end_torchrun()
        attempts.close_lost(self.records, time.time())
        self._write("stopped", "stopped by the operator")
        return 0

    def _end_torchrun(self) -> None:
        torchrun = self.torchrun
        if torchrun is not None and torchrun.poll() is None:
            torchrun.terminate()
            try:
                torchrun.wait(self.launch.gang_grace_s)
            except subprocess.TimeoutExpired:
                torchrun.kill()
                torchrun.wait(10)
        # A shim whose torchrun was killed lives on: give it time to end its engine in order.
        processes.end(processes.descendants(os.getpid()), self.launch.engine_grace_s + 5.0)

    def _end_for_good(self) -> int:
        self._write("crash-loop", "the rank failed %d times in a row" % self.launch.crash_limit)
        sys.stdout.write("k3ctl: crash loop: giving up until `k3ctl start`\n")
        return CRASH_LOOP_STATUS

    def _failed(self, reason: str) -> int:
        before = read_json(self.launch.state("gang.json")) or {}
        same = before.get("state") in ("failed", "meeting") and self._count() == before.get("attempts")
        self._write("failed", reason, failed_starts=int(before.get("failed_starts", 0)) + 1 if same else 1)
        sys.stdout.write("k3ctl: %s\n" % reason)
        return FAILED

    def _crash_loop(self) -> bool:
        limits = (self.launch.crash_limit, self.launch.crash_window_s, self.launch.healthy_after_s)
        return attempts.crash_loop(attempts.lines(self.records), *limits) is not None

    def _given_up(self) -> bool:
        records = attempts.lines(self.records)
        return bool(records) and records[-1].get("event") == "giveup"

    def _count(self) -> int:
        return attempts.last_number(self.records)

    def _write(self, state: str, reason: str, failed_starts: int = 0) -> None:
        """gang.json. While torchrun waits for the others, the failed starts before it are carried along."""
        if state == "meeting":
            before = read_json(self.launch.state("gang.json")) or {}
            if before.get("state") in ("failed", "meeting") and before.get("attempts") == self._count():
                failed_starts = int(before.get("failed_starts", 0))
                reason = before.get("reason", "")
        value: Dict[str, Any] = {
            "state": state, "reason": reason, "failed_starts": failed_starts, "at": time.time(),
            "started": self.started, "pid": os.getpid(), "attempts": self._count(), "launch_id": self.launch.launch_id,
        }  # fmt: skip
        write_atomically(self.launch.state("gang.json"), value)

    def _unmark_stopping(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self.launch.state(STOPPING))


def _die_with_parent() -> None:
    """In the child: SIGTERM when the gang dies, so that a killed gang leaves no torchrun where systemd is missing."""
    processes.prctl(processes.PR_SET_PDEATHSIG, signal.SIGTERM)


def _mtime(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _last_error(lines: List[str]) -> str:
    """torchrun's last line that names an error."""
    for line in reversed(lines):
        text = line.strip()
        if "Error" in text.split(":")[0] and not text.startswith(("File ", "frame ", "raise ")):
            return text[:300]
    return lines[-1].strip()[:300] if lines else ""
