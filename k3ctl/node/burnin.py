"""`k3node burnin`: this node's part in a torchrun job over all ranks that proves that they can compute together.

Payload: {unit, torchrun, python, rank, nnodes, per_node, head, port, address, interface, id, backend, sizes, rounds,
timeout_s, join_s}. Prints one JSON object when it ends: {stage, ok, reason, ranks: [...], seconds}. Stages, in order:
interface, port (the head's port is taken), connect (the head was not reached), rendezvous (a rank is missing), ranks
(a rank failed: its own stage and reason are in `ranks`), timeout, done. Nothing is left running, whatever ends it.
"""

from __future__ import annotations

import json
import os
import pkgutil
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Optional

from k3ctl.node import ports, processes
from k3ctl.node.addresses import NoInterface, interface_of

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy", "no_proxy")


class Ended(Exception):
    """Asked to end (signal): the controller went away or the user stopped."""


def main(argv: List[str]) -> int:
    """Run the burn-in of the payload on stdin. Status 0 whenever there is a result, good or bad."""
    if argv:
        sys.stderr.write("usage: k3node burnin < payload\n")
        return 2
    payload = json.loads(sys.stdin.read())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _end)
    began = time.monotonic()
    try:
        result = BurnIn(payload).run()
    except Ended:
        return 143
    result["seconds"] = time.monotonic() - began
    sys.stdout.write(json.dumps(result, sort_keys=True) + "\n")
    return 0


def _end(number: int, _frame: Any) -> None:
    raise Ended(number)


class BurnIn:
    """One node's part, from its checks to its clean-up."""

    def __init__(self, payload: Dict[str, Any]) -> None:
        self.job = payload
        self.folder = ""
        self.process: Optional[subprocess.Popen[bytes]] = None

    def run(self) -> Dict[str, Any]:
        """The result; whatever happens, the job and its files are gone afterwards."""
        self._clear()
        try:
            return self._checked()
        finally:
            self._clear()
            if self.folder:
                shutil.rmtree(self.folder, ignore_errors=True)

    def _checked(self) -> Dict[str, Any]:
        job = self.job
        try:
            interface = interface_of(job["address"], job["interface"])
        except (NoInterface, OSError, ValueError) as error:
            return _result("interface", str(error))
        if job["rank"] == 0:
            taken = ports.holders([job["port"]])
            if taken:
                return _result("port", "port %(port)d is held by pid %(pid)d: %(command)s" % taken[0])
        else:
            reason = self._reach_head()
            if reason:
                return _result("connect", reason)
        self.folder = tempfile.mkdtemp(prefix="k3ctl-burnin-")
        worker = os.path.join(self.folder, "worker.py")
        with open(worker, "wb") as file:
            file.write(pkgutil.get_data("k3ctl.node", "burnin_worker.py") or b"")
        return self._run_torchrun(worker, interface)

    def _reach_head(self) -> str:
        """Wait until the head's torchrun listens; empty when it does. The head may start a little later than we."""
        until, reason = time.monotonic() + self.job["join_s"], ""
        while True:
            try:
                family = socket.AF_INET6 if ":" in self.job["head"] else socket.AF_INET
                with socket.socket(family, socket.SOCK_STREAM) as probe:
                    probe.settimeout(3.0)
                    # From our own cluster address: the way that the ranks take.
                    probe.bind((self.job["address"], 0))
                    probe.connect((self.job["head"], self.job["port"]))
                return ""
            except OSError as error:
                reason = str(error)
            if time.monotonic() > until:
                return "no connection from %s to %s:%d in %g s: %s" % (
                    self.job["address"], self.job["head"], self.job["port"], self.job["join_s"], reason,
                )  # fmt: skip
            time.sleep(0.3)

    def _run_torchrun(self, worker: str, interface: str) -> Dict[str, Any]:
        argv = self._argv(worker)
        environment = self._environment(interface)
        if self.job["unit"]:
            settings = ["--setenv=%s=%s" % pair for pair in sorted(environment.items())]
            argv = [
                "systemd-run", "--quiet", "--wait", "--pipe", "--collect", "--unit=" + self.job["unit"],
                "--description=k3ctl burn-in", "--property=KillMode=control-group", "--property=TimeoutStopSec=5",
                "--property=RuntimeMaxSec=%d" % (self.job["timeout_s"] + 5), *settings, "--", *argv,
            ]  # fmt: skip
            environment = dict(os.environ)
        self.process = subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
        try:
            said, _ = self.process.communicate(timeout=self.job["timeout_s"])
        except subprocess.TimeoutExpired:
            return self._judge("", None)
        return self._judge(said.decode("utf-8", "replace"), self.process.returncode)

    def _argv(self, worker: str) -> List[str]:
        job = self.job
        head = "[%s]:%d" % (job["head"], job["port"]) if ":" in job["head"] else "%s:%d" % (job["head"], job["port"])
        conf = "is_host=%s,join_timeout=%d,read_timeout=%d" % (
            "true" if job["rank"] == 0 else "false", job["join_s"], job["join_s"],
        )  # fmt: skip
        return [
            job["torchrun"], "--nnodes", str(job["nnodes"]), "--nproc-per-node", str(job["per_node"]),
            "--rdzv-backend", "c10d", "--rdzv-endpoint", head, "--rdzv-id", job["id"], "--rdzv-conf", conf,
            "--local-addr", job["address"], "--max-restarts", "0", "--monitor-interval", "0.2",
            "--log-dir", self.folder, worker,
        ]  # fmt: skip

    def _environment(self, interface: str) -> Dict[str, str]:
        job = self.job
        return {
            "PATH": os.path.dirname(job["torchrun"]) + ":/usr/local/bin:/usr/bin:/bin",
            "HOME": self.folder,
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            # Gloo wants the bare name, NCCL an exact match (a bare name is a prefix there).
            "GLOO_SOCKET_IFNAME": interface,
            "NCCL_SOCKET_IFNAME": "=" + interface,
            "TP_SOCKET_IFNAME": interface,
            "K3CTL_BURNIN": json.dumps(
                {
                    "folder": self.folder, "node_rank": job["rank"], "backend": job["backend"],
                    "sizes": job["sizes"], "rounds": job["rounds"], "timeout_s": job["collective_s"],
                }
            ),
        }  # fmt: skip

    def _judge(self, said: str, status: Optional[int]) -> Dict[str, Any]:
        names = [n for n in sorted(os.listdir(self.folder)) if n.startswith("rank-") and n.endswith(".json")]
        ranks = [rank for rank in (_read(os.path.join(self.folder, name)) for name in names) if rank is not None]
        tail = "\n".join(said.strip().splitlines()[-12:])
        if status is None:
            return _result("timeout", "not ended after %g s" % self.job["timeout_s"], ranks)
        if not ranks:
            if "RendezvousTimeoutError" in said or "timed out" in said:
                return _result("rendezvous", "not all nodes came within %d s" % self.job["join_s"], tail=tail)
            return _result("ranks", "torchrun ended with status %d before a rank ran" % status, tail=tail)
        bad = [rank for rank in ranks if rank.get("stage") != "done"]
        if bad or status != 0 or len(ranks) != self.job["per_node"]:
            first = bad[0] if bad else ranks[0]
            return _result("ranks", first.get("error") or "torchrun ended with status %d" % status, ranks, tail)
        return _result("done", "", ranks)

    def _clear(self) -> None:
        """End the job: ours, or one that a killed controller left."""
        if self.job["unit"]:
            subprocess.run(["systemctl", "stop", "--", self.job["unit"]], stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30, check=False)  # fmt: skip
        if self.process is not None and self.process.poll() is None:
            processes.end([p for p in [processes.read(self.process.pid)] if p]
                          + processes.descendants(self.process.pid), 2.0)  # fmt: skip
            self.process.wait(10)


def _result(stage: str, reason: str, ranks: Optional[List[Any]] = None, tail: str = "") -> Dict[str, Any]:
    return {"stage": stage, "ok": stage == "done", "reason": reason, "ranks": ranks or [], "tail": tail}


def _read(path: str) -> Optional[Dict[str, Any]]:
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
