"""`k3node rank --launch FILE`: the only child of torchrun. Runs the engine once, and turns every end into a failure.

An engine that lost a worker exits with status 0 (measured, vLLM 0.32), or goes on answering without being able to
compute. So: any end of the engine is a failure, and so is the end of one of its worker processes. torchrun then
restarts the ranks of all nodes together. What happened is written to attempts.jsonl and to the attempt's own log.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List, Optional

from k3ctl.node import attempts, processes
from k3ctl.node.addresses import NoInterface, interface_of
from k3ctl.node.attemptlog import AttemptLog
from k3ctl.node.launchfile import CRASH_LOOP_STATUS, Launch, load, read_env_file, write_atomically
from k3ctl.node.reason import salient

ENDED_BY_GANG = 143
FAILED = 1
WORKER_GRACE_S = 10.0  # a healthy engine ends by itself 2 to 6 s after one of its workers died (measured)
POLL_S = 0.25
STOPPING = "stopping"


def main(argv: List[str]) -> int:
    """Run one attempt; the status is never 0, because torchrun must take every end as a failure."""
    if len(argv) != 2 or argv[0] != "--launch":
        sys.stderr.write("usage: k3node rank --launch FILE\n")
        return 2
    launch = load(argv[1])
    return Attempt(launch).run()


def engine_environment(launch: Launch, base: Dict[str, str]) -> Dict[str, str]:
    """The engine's environment: the unit's, less torchrun's variables and proxies, plus the plan's."""
    env = {
        key: value
        for key, value in base.items()
        if key not in launch.drop_env and not any(key.startswith(p) for p in launch.drop_env_prefixes)
    }
    env.update(launch.base_env)
    env["HOME"] = launch.home
    env.update(read_env_file(launch.env_file))
    if launch.interface_env:
        interface = interface_of(launch.address, launch.interface)
        env.update({key: value.replace("{interface}", interface) for key, value in launch.interface_env.items()})
    env[processes.MARKER] = launch.cluster
    return env


def launch_key_file(launch: Launch) -> Dict[str, str]:
    """Where an engine without a variable for its API key reads it: path, variable, key; empty when it has one."""
    return dict(launch.raw.get("api_key_file") or {})


def hand_over_key(file: Dict[str, str], environment: Dict[str, str]) -> List[str]:
    """Move the key out of the environment into a file that only its owner may read; what must not be logged then."""
    if not file:
        return []
    key = environment.pop(file["variable"])
    descriptor = os.open(file["path"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        os.fchmod(descriptor, 0o600)
        opened.write("%s: %s\n" % (file["key"], json.dumps(key)))
    return [key] if key else []


class Attempt:
    """One run of the engine on this node."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.stop_asked = threading.Event()
        self.records = attempts.path_of(launch)
        self.parent = os.getppid()
        self.worker_seen: Dict[int, str] = {}
        self.worker_lost: Optional[Dict[str, Any]] = None
        self.engine: Optional[subprocess.Popen[bytes]] = None

    def run(self) -> int:
        """Clean up what an earlier attempt left, start the engine, watch it, record its end."""
        processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self.stop_asked.set())
        os.makedirs(self.launch.state_dir, mode=0o755, exist_ok=True)
        if self._crash_loop():
            # Said only now, when the ranks of all nodes have met again: so every node has counted the last failure
            # too, and all give up in the same round. The gang sees it and ends the unit.
            attempts.append(self.records, {"event": "giveup", "at": time.time()})
            self.stop_asked.wait(60)
            return CRASH_LOOP_STATUS
        leftovers = self._end_leftovers()
        attempts.close_lost(self.records, time.time())
        self.number = attempts.last_number(self.records) + 1
        self.log = AttemptLog(self.launch.rank_dir, self.launch.logs_keep, self.launch.logs_max_bytes)
        self.started = time.time()
        self._record_start()
        for text in leftovers:
            self.log.write("K", text)
        try:
            environment = engine_environment(self.launch, dict(os.environ))
            self.log.secrets = hand_over_key(launch_key_file(self.launch), environment)
            self._start_engine(environment)
        except (OSError, ValueError, NoInterface) as error:
            self.log.write("K", "the engine could not be started: %s" % error)
            return self._record_end("start", "the engine could not be started: %s" % error, None)
        return self._watch()

    def _crash_loop(self) -> bool:
        limits = (self.launch.crash_limit, self.launch.crash_window_s, self.launch.healthy_after_s)
        return attempts.crash_loop(attempts.lines(self.records), *limits) is not None

    def _end_leftovers(self) -> List[str]:
        """End what an earlier attempt left behind: it holds memory and ports."""
        # The gang and torchrun are above us, other children of torchrun are its own; the rest of the unit is left over.
        found = processes.of_cluster(self.launch.cluster, self.launch.unit)
        left = {pid: p for pid, p in found.items() if p.parent != os.getppid()}
        if not left:
            return []
        stuck = processes.end(left.values(), 2.0)
        texts = ["ended a process that an earlier attempt left: %d %s" % (p.pid, p.title[:120]) for p in left.values()]
        return texts + ["could not end %d %s" % (p.pid, p.title[:120]) for p in stuck]

    def _record_start(self) -> None:
        # MASTER_PORT is a new one in every round of the rendezvous: the same text on all nodes names the round.
        round_name = "%s:%s" % (os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", ""))
        attempts.append(self.records, {"event": "start", "attempt": self.number, "at": self.started,
                        "launch_id": self.launch.launch_id, "log": self.log.name, "round": round_name,
                        "pid": os.getpid()})  # fmt: skip
        self.log.write("K", "attempt %d of rank %d, launch %s, round %s: %s"
                       % (self.number, self.launch.rank, self.launch.launch_id[:8], round_name,
                          " ".join(self.launch.engine_argv)))  # fmt: skip
        self._write_rank("starting")

    def _start_engine(self, environment: Dict[str, str]) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        # Its own session: torchrun signals our process group, and we end the engine in our own order.
        self.engine = subprocess.Popen(
            self.launch.engine_argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - no thread runs yet
        )
        processes.WAITED.add(self.engine.pid)
        self.pumps = [
            threading.Thread(target=self.log.pump, args=(source, stream), daemon=True)
            for source, stream in ((self.engine.stdout, "O"), (self.engine.stderr, "E"))
        ]
        for pump in self.pumps:
            pump.start()
        self._write_rank("running")

    def _watch(self) -> int:
        assert self.engine is not None  # noqa: S101 - for the type checker
        looked, lost_since = 0.0, 0.0
        while True:
            status = self.engine.poll()
            if status is not None:
                return self._engine_ended(status)
            if self.stop_asked.wait(POLL_S) or os.getppid() != self.parent:
                return self._ended_by_gang()
            now = time.monotonic()
            self._miss_workers()
            if now - looked >= 1.0:
                looked = now
                self._look_at_workers()
                processes.reap()
            if self.worker_lost and not lost_since:
                lost_since = now
            if lost_since and now - lost_since > WORKER_GRACE_S:
                lost = self.worker_lost or {}
                reason = "worker process %s (pid %s) ended and its engine went on" % (lost["title"], lost["pid"])
                self._end_engine()
                return self._record_end("worker", reason, None)

    def _look_at_workers(self) -> None:
        """Remember the engine's long-lived processes by their titles."""
        assert self.engine is not None  # noqa: S101 - for the type checker
        now = {
            p.pid: p.title
            for p in processes.descendants(self.engine.pid)
            if any(p.title.startswith(title) for title in self.launch.worker_titles)
        }
        if set(now) != set(self.worker_seen):
            self.worker_seen.update(now)
            self._write_rank("running")

    def _miss_workers(self) -> None:
        """Note the first long-lived process that is gone. Often: the time decides which rank failed first."""
        if self.worker_lost is not None:
            return
        for pid, title in self.worker_seen.items():
            process = processes.read(pid)
            if process is None or process.state == "Z":
                self.worker_lost = {"title": title, "pid": pid, "at": time.time()}
                self.log.write("K", "worker process %s (pid %d) is gone" % (title, pid))
                return

    def _engine_ended(self, status: int) -> int:
        how = "with status %d" % status if status >= 0 else "by signal %d (%s)" % (-status, _signal_name(-status))
        lost = self.worker_lost
        text = "engine ended %s" % how
        if lost:
            text = "worker process %s (pid %s) died; %s" % (lost["title"], lost["pid"], text)
        self.log.write("K", text)
        self._end_engine()
        cause = "worker" if lost else "exit"
        if os.path.exists(self.launch.state(STOPPING)):
            cause = "stop"  # the other nodes were stopped a moment earlier, and the engine noticed
        return self._record_end(cause, text, status)

    def _ended_by_gang(self) -> int:
        stopped = os.path.exists(self.launch.state(STOPPING))
        agent_lost = os.getppid() != self.parent  # torchrun died without ending us; we were handed to the gang
        self._miss_workers()  # before we end the engine ourselves: what is gone now failed by itself
        lost = self.worker_lost
        self._end_engine()
        stopped = stopped or os.path.exists(self.launch.state(STOPPING))
        cause, text = "gang", "ended by the gang: another rank failed or joined anew"
        if stopped:
            cause, text = "stop", "stopped by the operator"
        elif lost is not None:
            cause, text = "worker", "worker process %s (pid %s) died" % (lost["title"], lost["pid"])
        elif agent_lost:
            cause, text = "agent", "this node's torchrun ended under it"
        self.log.write("K", text)
        self._record_end(cause, text, None)
        return ENDED_BY_GANG

    def _end_engine(self) -> None:
        """End the engine and everything under it; what outlives SIGKILL is written down."""
        engine = self.engine
        if engine is None:
            return
        if engine.poll() is None:
            engine.terminate()
            try:
                engine.wait(self.launch.engine_grace_s)
            except subprocess.TimeoutExpired:
                self.log.write("K", "the engine ignored SIGTERM for %g s: SIGKILL" % self.launch.engine_grace_s)
                engine.kill()
                engine.wait(10)
        stuck = processes.end(processes.descendants(os.getpid()), 3.0)
        for process in stuck:
            self.log.write("K", "could not end %d %s" % (process.pid, process.title[:120]))
        for pump in self.pumps:
            pump.join(2.0)

    def _record_end(self, cause: str, reason: str, status: Optional[int]) -> int:
        lines = self.log.recent[-12:]
        found = salient(self.log.recent)
        if cause in ("exit", "worker") and found:
            reason = "%s: %s" % (reason, found)
        record: Dict[str, Any] = {"event": "end", "attempt": self.number, "at": time.time(), "cause": cause,
                                  "reason": reason[:600], "tail": [line[:300] for line in lines]}  # fmt: skip
        if status is not None:
            record["exit" if status >= 0 else "signal"] = abs(status)
        if self.worker_lost:
            record["worker"] = self.worker_lost
        attempts.append(self.records, record)
        self._write_rank("ended")
        self.log.close()
        sys.stderr.write("k3ctl: rank %d attempt %d: %s\n" % (self.launch.rank, self.number, reason))
        return FAILED

    def _write_rank(self, state: str) -> None:
        write_atomically(self.launch.state("rank.json"), {
            "launch_id": self.launch.launch_id, "rank": self.launch.rank, "attempt": self.number, "state": state,
            "pid": os.getpid(), "engine_pid": self.engine.pid if self.engine else 0, "started": self.started,
            "log": os.path.join(self.launch.rank_dir, self.log.name),
            "workers": [{"pid": pid, "title": title} for pid, title in sorted(self.worker_seen.items())],
        })  # fmt: skip


def _die_with_parent() -> None:
    """In the child: SIGKILL when the shim dies, so that no engine runs without one; default signals."""
    processes.prctl(processes.PR_SET_PDEATHSIG, signal.SIGKILL)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
