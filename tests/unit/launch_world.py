"""A cluster that exists only as facts: agent, Ansible, endpoint, store and clock for phases about launching."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from k3ctl.errors import K3ctlError, Problem, Unreachable
from k3ctl.inventory import Inventory, Node, SshTarget
from k3ctl.node.loading import progress
from k3ctl.phases.base import Options, Outcome, Work
from k3ctl.plan import Plan
from k3ctl.protocols import HttpReply, PlayEvent, PlayResult
from k3ctl.secret import Secret
from tests.unit.launch_fixtures import make_plan

AGENT = "/opt/k3ctl/node/k3node-0123456789ab.pyz"
NOW = 1796000000.0


@dataclass
class Host:
    """What one node would say. `loads` are the log lines that each further look adds, until the last one stays."""

    name: str
    texts: dict[str, str] = field(default_factory=dict)
    active: str = "inactive"
    exit_status: int = 0
    launch_id: str = ""
    installed: bool = False
    boot_id: str = "boot-1"
    holders: list[dict[str, Any]] = field(default_factory=list)
    ended: list[dict[str, Any]] = field(default_factory=list)
    left: list[dict[str, Any]] = field(default_factory=list)
    loads: list[str] = field(default_factory=lambda: ["Application startup complete.", "Loading weights took 1 s"])
    attempts: list[dict[str, Any]] = field(default_factory=list)
    burnin: dict[str, Any] = field(default_factory=dict)
    burnin_hangs: bool = False
    broken: K3ctlError | None = None
    looks: int = 0

    def status(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        self.looks += 1
        running = self.active == "active"
        seen = self.loads[: self.looks]
        digests = {key: hashlib.sha256(self.texts[key].encode()).hexdigest() if key in self.texts else None
                   for key in ("unit", "launch", "env")}  # fmt: skip
        attempts = list(self.attempts)
        if running:
            attempts.append(
                {"attempt": len(attempts) + 1, "started": NOW - 5, "ended": None, "round": "h:9", "log": "l"}
            )
        gang = {"state": "formed", "launch_id": self.launch_id, "reason": "", "failed_starts": 0}
        return {
            "now": NOW,
            "monotonic": 1000.0,
            "boot_id": self.boot_id,
            "unit": {
                "load": "loaded" if "unit" in self.texts else "not-found",
                "active": self.active,
                "sub": "running" if running else "dead",
                "enabled": "enabled" if running else "disabled",
                "result": "exit-code" if self.exit_status else "success",
                "exit_status": self.exit_status,
                "active_since": 900.0 if running else 0.0,
                "inactive_since": 0.0,
            },
            "files": digests,
            "texts": {k: self.texts.get(k, "") for k in ("unit", "launch")} if payload["texts"] else None,
            "launch_id": self.launch_id,
            "engine_version": "0.32.0",
            "gang": gang if self.launch_id else None,
            "attempts": attempts,
            "failures": {"count": len(self.attempts), "crash_loop": None},
            "progress": progress(seen if running else []),
            "life": {"rss": 10, "processes": 3, "read_bytes": self.looks, "ticks": self.looks} if running else None,
            "listening": payload["ports"] if running and "startup complete" in " ".join(seen) else [],
            "log_bytes": self.looks,
            "log": "/var/log/k3ctl/lab/rank0/current.log",
        }


class FakeAgent:
    """protocols.Agent over Hosts. `calls` is every (node, verb), in order per node."""

    def __init__(self, hosts: Mapping[str, Host]) -> None:
        self.hosts = hosts
        self.calls: list[tuple[str, str]] = []
        self.lock = threading.Lock()

    path = AGENT

    def install(self, node: str) -> str:
        self.note(node, "install")
        self.hosts[node].installed = True
        return AGENT

    def call(self, node: str, verb: str, payload: Mapping[str, Any], *, timeout_s: float = 30.0) -> dict[str, Any]:
        self.note(node, verb)
        host = self.hosts[node]
        json.dumps(payload)  # it must be JSON
        if verb == "status":
            return host.status(payload)
        if verb == "start":
            assert host.installed
            assert "unit" in host.texts
            if host.holders:
                return {"started": False, "ended": [], "holders": host.holders, "reason": "planned ports are taken"}
            host.active, host.exit_status, host.attempts = "active", 0, []
            host.launch_id = json.loads(host.texts["launch"])["launch_id"]
            host.looks = 0
            return {"started": True, "ended": host.ended, "holders": [], "reason": ""}
        if verb == "stop":
            assert timeout_s > payload["timeout_s"]
            was, host.active = host.active, "inactive"
            return {"stopped": not host.left and not host.holders, "was": was, "ended": host.ended, "left": host.left,
                    "holders": host.holders, "reason": ""}  # fmt: skip
        raise AssertionError(f"nobody planned {verb}")

    def lines(
        self, node: str, verb: str, payload: Mapping[str, Any], on_line: Callable[[str], None], stop: Any
    ) -> None:
        self.note(node, verb)
        assert verb == "burnin"
        until = time.monotonic() + 10
        while self.hosts[node].burnin_hangs and not stop.is_set():
            assert time.monotonic() < until, "nobody ended it"
            time.sleep(0.01)
        if self.hosts[node].burnin_hangs:
            return  # as the agent does when it is asked to end
        on_line(json.dumps(self.hosts[node].burnin))

    def note(self, node: str, verb: str) -> None:
        with self.lock:
            self.calls.append((node, verb))
        broken = self.hosts[node].broken
        if broken is not None:
            raise broken

    def verbs(self) -> list[str]:
        """Every verb once, in the order of its first call."""
        return list(dict.fromkeys(verb for _, verb in self.calls))


@dataclass
class FakeServe:
    """protocols.Ansible that knows one playbook: serve, which installs texts."""

    hosts: Mapping[str, Host]
    result: PlayResult = field(default_factory=lambda: PlayResult("successful"))
    runs: list[tuple[str, ...]] = field(default_factory=list)

    def run(self, playbook: str, nodes: tuple[str, ...], variables: Mapping[str, Mapping[str, Any]], *, check: bool,
            stop: Any, on_event: Callable[[PlayEvent], None], timeout_s: float = 0) -> PlayResult:  # fmt: skip
        assert (playbook, check) == ("serve", False)
        assert set(variables) == set(nodes)
        self.runs.append(nodes)
        for node in nodes if self.result.status == "successful" else ():
            values = variables[node]
            assert isinstance(values["engine_env_text"], Secret)
            self.hosts[node].texts = {
                "unit": values["engine_unit_text"],
                "launch": values["engine_launch_text"],
                "env": values["engine_env_text"].reveal(),
            }
        for node, text in self.result.failures.items():
            on_event(PlayEvent("failed", "Write the unit", node, text))
        return self.result


@dataclass
class FakeEndpoint:
    """protocols.Http. `refuse` makes it unreachable; `answers` overrides by (path, kind of body)."""

    key: Callable[[], Secret | None]
    refuse: bool = False
    status: int = 200
    asked: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    stream: tuple[str, ...] = ("He", "llo")

    def ask(self, method: str, url: str, *, bearer: Secret | None = None, json: Any = None, timeout_s: float = 10.0,
            on_line: Callable[[str], None] | None = None) -> HttpReply:  # fmt: skip
        assert method == "POST"
        assert timeout_s > 0
        self.asked.append((url, json))
        if self.refuse:
            raise Unreachable(Problem(what="connection refused"))
        if bearer is None or bearer != self.key():
            return self.reply(401, {"error": "Unauthorized"})
        if self.status != 200:
            return self.reply(self.status, {"error": {"message": "EngineCore encountered an issue."}})
        if json["model"] != "kimi-k3-mini":
            return self.reply(404, {"error": {"message": "no such model"}})
        if json["max_tokens"] < 1:
            return self.reply(400, {"error": {"message": "max_tokens must be at least 1"}})
        if json.get("stream"):
            assert on_line is not None
            for piece in self.stream:
                on_line("data: " + self.text({"choices": [{"delta": {"content": piece}}]}))
            on_line("data: [DONE]")
            return HttpReply(200, {}, b"", 0.3)
        choice = {"message": {"content": "Hello."}, "text": "Hello."}
        return self.reply(200, {"choices": [choice], "usage": {"completion_tokens": 2}})

    def reply(self, status: int, body: Mapping[str, Any]) -> HttpReply:
        return HttpReply(status, {}, self.text(body).encode(), 0.2)

    @staticmethod
    def text(value: Any) -> str:
        return json.dumps(value)


class Store:
    """phases.world.Store in memory."""

    def __init__(self) -> None:
        self.secrets: dict[str, Secret] = {}
        self.notes: dict[str, str] = {}

    def secret(self, name: str, make: Callable[[], str] | None = None) -> Secret | None:
        if name not in self.secrets and make is not None:
            self.secrets[name] = Secret(make())
        return self.secrets.get(name)

    def note(self, name: str) -> str | None:
        return self.notes.get(name)

    def keep(self, name: str, text: str) -> None:
        self.notes[name] = text


@dataclass
class Talk:
    """events.Reporter that remembers."""

    said: list[str] = field(default_factory=list)

    def say(self, text: str, *, node: str = "", level: str = "info") -> None:
        self.said.append(f"{node}: {text}" if node else text)

    def progress(self, node: str, done: float, total: float, unit: str, text: str = "") -> None:
        assert unit in ("tasks", "shards")


class QuickStop:
    """protocols.Stop whose waiting moves the clock instead; `after` waits it is set."""

    def __init__(self) -> None:
        self.now = 0.0
        self.after: int | None = None
        self.waits = 0

    def is_set(self) -> bool:
        return self.after is not None and self.waits >= self.after

    def wait(self, timeout: float) -> bool:
        self.waits += 1
        self.now += timeout
        return self.is_set()


class Cluster:
    """The whole stand-in: hosts, edges and a Work over them."""

    def __init__(self, nodes: int = 2, plan: Plan | None = None) -> None:
        self.plan = plan or make_plan(nodes)
        names = [node.name for node in self.plan.nodes]
        self.hosts = {name: Host(name) for name in names}
        self.agent = FakeAgent(self.hosts)
        self.ansible = FakeServe(self.hosts)
        self.store = Store()
        self.http = FakeEndpoint(lambda: self.store.secrets.get("api_key"))
        self.stop = QuickStop()
        self.talk = Talk()
        inventory = Inventory("lab", "/inv", tuple(Node(n, i, SshTarget(n), "") for i, n in enumerate(names)))
        spec = SimpleNamespace(security=SimpleNamespace(api_key="generated"))
        cluster: Any = SimpleNamespace(name="lab", inventory=inventory, spec=spec, spec_file="/inv/cluster.yml")
        clock = SimpleNamespace(now=lambda: NOW, monotonic=lambda: self.stop.now)
        world: Any = SimpleNamespace(
            agent=self.agent, ansible=self.ansible, http=self.http, clock=clock, store=self.store
        )
        reporter: Any = self.talk
        self.work = Work(cluster, self.plan, tuple(names), Options("inv"), world, {}, reporter, self.stop)

    def options(self, **options: Any) -> None:
        self.work = replace(self.work, options=Options("inv", **options))

    def run(self, phase: Any) -> Outcome:
        """Assess and, where something must change, apply, as the runner does."""
        assessment = phase.assess(self.work)
        if not assessment.changes:
            outcome = Outcome("unchanged", assessment.said, assessment.value)
        else:
            outcome = replace(phase.apply(self.work, assessment), changes=assessment.changes)
        self.work = replace(self.work, done={**self.work.done, phase.name: outcome})
        return outcome
