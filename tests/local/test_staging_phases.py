"""The phases stage and runtime: with the real agent on this machine as the only node, and with planned answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from k3ctl.cluster import Cluster, ClusterSpec, Weights
from k3ctl.edge.clock import SystemClock
from k3ctl.edge.hub import HuggingFaceHub
from k3ctl.errors import AgentFailed, Interrupted, K3ctlError, PhaseFailed, Problem, Unreachable
from k3ctl.events import Event, PhaseReporter, Progress, Said
from k3ctl.inventory import Inventory, Node, SshTarget
from k3ctl.lab.hub.faults import Rule
from k3ctl.phases.base import Assessment, Options, Outcome, Phase, Work
from k3ctl.phases.runtime import Runtime, RuntimeReady
from k3ctl.phases.stage import Stage, Staged
from k3ctl.phases.world import World
from k3ctl.plan import ModelPlan, RuntimePlan
from k3ctl.secret import Secret
from k3ctl.staging.manifest import Manifest, ManifestFile, manifest_of
from k3ctl.stop import StopFlag
from tests.local import systemd_fixtures
from tests.local.stage_fixtures import PIECE, REPO, SHARD, TOKEN, Bed, bed, noise, wait_for
from tests.local.test_unpack import Bench, bench, environment, member, tar_of
from tests.unit.preflight_fixtures import plan


class Unused:
    """An edge that these phases may not use."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"staging may not use {name}")


class Notes:
    """A store that keeps notes in memory."""

    def __init__(self) -> None:
        self.notes: dict[str, str] = {}

    def note(self, name: str) -> str | None:
        return self.notes.get(name)

    def keep(self, name: str, text: str) -> None:
        self.notes[name] = text

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"staging may not use the store's {name}")


class HereAgent:
    """The real agent's verbs in processes of this machine."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def call(self, node: str, verb: str, payload: Mapping[str, Any], *, timeout_s: float = 30.0) -> dict[str, Any]:
        self.calls.append(f"{verb} {payload['action']}")
        argv = [sys.executable, "-m", "k3ctl.node", verb]
        done = subprocess.run(
            argv, input=json.dumps(payload), capture_output=True, text=True, check=False, timeout=timeout_s
        )
        if done.returncode != 0:
            raise AgentFailed(Problem(what=f"verb {verb} failed", evidence=done.stderr, node=node))
        reply: dict[str, Any] = json.loads(done.stdout)
        return reply

    def install(self, node: str) -> str:
        self.calls.append("install")
        return "-mk3ctl.node"  # python -mk3ctl.node fetch-run JOB


class CountingHub(HuggingFaceHub):
    """The real hub edge, counted."""

    asked: list[str] = []  # noqa: RUF012 - reset by `world`

    def manifest(self, endpoint: str, repo: str, revision: str, token: Secret | None) -> Manifest:
        self.asked.append(repo)
        return super().manifest(endpoint, repo, revision, token)


@dataclass
class Desk:
    """Everything a phase gets, and what came out of it."""

    work: Work
    agent: Any
    store: Notes
    stop: StopFlag
    events: list[Event] = field(default_factory=list)

    def said(self) -> str:
        return "\n".join(f"{e.node} {e.text}" for e in self.events if isinstance(e, Said))

    def progress(self) -> list[Progress]:
        return [e for e in self.events if isinstance(e, Progress)]

    def run(self, phase: Phase) -> tuple[Assessment, Outcome | None]:
        assessment = phase.assess(self.work)
        return assessment, phase.apply(self.work, assessment) if assessment.changes else None


def desk(planned: Any, agent: Any, hub: Any, *, weights: Weights | None = None, clock: Any = None) -> Desk:
    events: list[Event] = []
    stop, store = StopFlag(), Notes()
    spec = ClusterSpec(platform="p", model="m", engine="e", weights=weights or Weights())
    hosts = tuple(Node(n.name, n.rank, SshTarget(n.name), n.address) for n in planned.nodes)
    unused: Any = Unused()
    world = World(unused, agent, unused, unused, hub, clock or SystemClock(), store)  # type: ignore[arg-type]
    work = Work(
        cluster=Cluster(Inventory("pod", "/i/pod", hosts), spec, "/i/pod/cluster.yml"),
        plan=planned,
        nodes=tuple(n.name for n in planned.nodes),
        options=Options(inventory="/i/pod"),
        world=world,
        done={},
        report=PhaseReporter("stage", events.append),
        stop=stop,
    )
    return Desk(work, agent, store, stop, events)


def model_plan(hub: Bed) -> ModelPlan:
    return ModelPlan(REPO, hub.manifest.commit, str(hub.dest), hub.running.endpoint, "m")


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """systemd's two programs; what still runs at the end is ended."""
    folder = tmp_path / "systemd"
    folder.mkdir()
    state = systemd_fixtures.install(folder, monkeypatch)
    CountingHub.asked = []
    yield state
    for unit in state.glob("*.service"):
        try:
            os.kill(json.loads(unit.read_text())["pid"], signal.SIGKILL)
        except ProcessLookupError:
            continue


FILES = {SHARD: noise(9 * PIECE), "config.json": b"{}"}


def here(hub: Bed, **more: Any) -> Desk:
    planned = replace(plan(1), models=(model_plan(hub),))
    return desk(planned, HereAgent(), CountingHub(), **more)


def test_stage_and_stage_again(tmp_path: Path, units: Path) -> None:
    with bed(tmp_path, FILES) as hub:
        one = here(hub)
        assessment, outcome = one.run(Stage())
        (change,) = assessment.changes
        assert change.node == "node1"
        assert f"fetch 589.8 kB of 589.8 kB of {REPO}@{hub.manifest.commit[:8]}" in change.text
        assert outcome is not None
        assert outcome.status == "changed"
        assert "whole on 1 nodes: 589.8 kB fetched" in outcome.said
        assert isinstance(outcome.value, Staged)
        assert list(outcome.value.manifests) == [str(hub.dest)]
        found = outcome.value.manifests[str(hub.dest)]
        own = hub.dest / ".k3stage" / found.id
        assert (own / "COMPLETE.json").exists()
        assert not (own / "job.json").exists()
        assert {p: (hub.dest / p).read_bytes() for p in FILES} == FILES
        assert one.progress()[-1].done == one.progress()[-1].total == hub.manifest.total
        assert json.loads(next(units.glob("*.service")).read_text())["argv"][1:3] == ["-mk3ctl.node", "fetch-run"]

        before = len(hub.served())
        one.agent.calls.clear()
        again, nothing = one.run(Stage())
        assert nothing is None
        assert again.value == outcome.value
        assert (
            f"{REPO}@{hub.manifest.commit[:8]} whole on 1 nodes (2 files, 589.8 kB, every digest proven at 2"
            in again.said
        )
        assert one.agent.calls == ["fetch inspect"]  # one round trip a node
        assert len(hub.served()) == before  # the kept manifest is enough
        assert CountingHub.asked == [REPO]


def test_dry_run_touches_nothing(tmp_path: Path, units: Path) -> None:
    with bed(tmp_path, FILES) as hub:
        one = here(hub)
        assert Stage().assess(one.work).changes
        assert not hub.dest.exists()
        assert one.agent.calls == ["fetch inspect"]


def test_token_travels_to_the_job_only(tmp_path: Path, units: Path) -> None:
    with bed(tmp_path, FILES, access="gated") as hub:
        token = tmp_path / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        one = here(hub, weights=Weights(token_file=str(token)))
        _, outcome = one.run(Stage())
        assert outcome is not None
        for path in tmp_path.rglob("*"):
            if path.is_file() and path.name not in ("token", "tokens.json"):
                assert TOKEN.encode() not in path.read_bytes(), path


def test_stop_leaves_the_agent_running_and_says_how_to_end_it(tmp_path: Path, units: Path) -> None:
    with bed(tmp_path, FILES) as hub:
        hub.faults(Rule("/cdn/*", "slow", rate=3 * PIECE, count=0))
        one = here(hub)
        assessment = Stage().assess(one.work)
        threading.Timer(1.0, one.stop.set).start()
        begun = time.monotonic()
        with pytest.raises(Interrupted) as caught:
            Stage().apply(one.work, assessment)
        assert time.monotonic() - begun < 3
        (problem,) = caught.value.problems
        assert "goes on by itself" in problem.what
        assert "systemctl stop 'k3ctl-pod-stage-*.service'" in problem.fix
        hub.faults()
        # The next run joins the agent that still runs, and ends with it.
        second = here(hub)
        again = Stage().assess(second.work)
        assert "under way" in again.changes[0].text
        outcome = Stage().apply(second.work, again)
        assert outcome.status == "changed"


def test_stop_verb_ends_the_unit(tmp_path: Path, units: Path) -> None:
    from k3ctl.staging.job import stage_of, start_request, stop_request

    with bed(tmp_path, FILES) as hub:
        hub.faults(Rule("/cdn/*", "slow", rate=3 * PIECE, count=0))
        one = here(hub)
        job = stage_of(
            "pod", model_plan(hub), CountingHub().manifest(hub.running.endpoint, REPO, hub.manifest.commit, None)
        )
        one.agent.call("node1", "fetch", start_request([job], "-mk3ctl.node", None))
        status = hub.dest / ".k3stage" / job.manifest.id / "status.json"
        wait_for(lambda: json.loads(status.read_text()).get("done", 0) > 0)
        one.agent.call("node1", "fetch", stop_request([job]))
        assert json.loads(status.read_text())["state"] == "stopped"
        with pytest.raises(PhaseFailed, match="it was stopped"):
            _follow_only(one, job)


def _follow_only(one: Desk, job: Any) -> None:
    from k3ctl.phases.follow import follow
    from k3ctl.staging.job import status_request
    from k3ctl.staging.progress import read_snapshot

    asked = status_request([job])
    follow(one.work, "node1", lambda: read_snapshot(one.agent.call("node1", "fetch", asked)), job.unit)


def test_failure_names_the_reason(tmp_path: Path, units: Path) -> None:
    with bed(tmp_path, FILES) as hub:
        hub.faults(Rule("/cdn/*", "html", count=0, body="<html>portal</html>"))
        one = here(hub)
        with pytest.raises(PhaseFailed) as caught:
            one.run(Stage())
        (problem,) = caught.value.problems
        assert "a web page came in place of" in problem.what
        assert problem.node == "node1"
        assert "refused" in problem.evidence


def test_agent_that_dies_is_told(tmp_path: Path, units: Path) -> None:
    with bed(tmp_path, FILES) as hub:
        hub.faults(Rule("/cdn/*", "slow", rate=3 * PIECE, count=0))
        one = here(hub)
        assessment = Stage().assess(one.work)

        def kill() -> None:
            wait_for(lambda: any(json.loads(p.read_text())["done"] for p in hub.dest.glob(".k3stage/*/status.json")))
            os.kill(json.loads(next(units.glob("*.service")).read_text())["pid"], signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(PhaseFailed, match=r"ended \(result success, 0 restarts\) while it said running"):
            Stage().apply(one.work, assessment)
        killer.join()


def test_edited_file_is_found_and_repaired(tmp_path: Path, units: Path) -> None:
    with bed(tmp_path, FILES) as hub:
        one = here(hub)
        one.run(Stage())
        (hub.dest / "config.json").write_text("[]")
        assessment, outcome = one.run(Stage())
        assert "changed since proven: config.json" in assessment.changes[0].text
        assert outcome is not None
        assert (hub.dest / "config.json").read_bytes() == b"{}"
        assert Stage().assess(one.work).changes == ()


def test_extra_files_are_named(tmp_path: Path, units: Path) -> None:
    with bed(tmp_path, FILES) as hub:
        one = here(hub)
        one.run(Stage())
        (hub.dest / "model-00002.safetensors").write_text("from elsewhere")
        assert Stage().assess(one.work).changes == ()
        assert "holds files that are not in" in one.said()
        assert "model-00002.safetensors" in one.said()


def test_verify_verb(tmp_path: Path, units: Path) -> None:
    with bed(tmp_path, FILES) as hub:
        one = here(hub)
        _, outcome = one.run(Stage())
        assert outcome is not None
        assert isinstance(outcome.value, Staged)
        stage = {"dest": str(hub.dest), "id": outcome.value.manifests[str(hub.dest)].id}

        def verify(*, full: bool) -> dict[str, Any]:
            argv = [sys.executable, "-m", "k3ctl.node", "verify"]
            payload = json.dumps({"stages": [stage], "full": full})
            done = subprocess.run(argv, input=payload, capture_output=True, text=True, check=True)
            found: dict[str, Any] = json.loads(done.stdout)["stages"][0]
            return found

        assert verify(full=True)["state"] == verify(full=False)["state"] == "whole"
        os.utime(hub.dest / SHARD)
        assert verify(full=False)["bad"] == [{"path": SHARD, "why": "changed since it was proven (mtime_ns)"}]
        assert verify(full=True)["state"] == "whole"
        with open(hub.dest / SHARD, "r+b") as file:
            file.write(b"?")
        assert "was proven" in verify(full=True)["bad"][0]["why"]
        stage["id"] = "0" * 64
        assert verify(full=True)["state"] == "unknown"


def runtime_desk(one: Bench) -> Desk:
    planned = replace(
        plan(1, min_runtime_bytes=10_000_000),
        runtime=RuntimePlan(
            "bundle",
            "env",
            f"{one.running.endpoint}/files/runtimes/env.tar.zst",
            one.digest,
            len(one.archive),
            str(one.path),
            f"{one.path}/bin",
        ),
    )
    return desk(planned, HereAgent(), Unused())


def test_runtime_and_again(tmp_path: Path, units: Path) -> None:
    with bench(tmp_path, tar_of(environment)) as one:
        two = runtime_desk(one)
        assessment, outcome = two.run(Runtime())
        assert "unpack and try env" in assessment.changes[0].text
        assert outcome is not None
        assert outcome.value == RuntimeReady("env", one.digest, str(one.path), f"{one.path}/bin")
        assert one.in_place()
        two.agent.calls.clear()
        again, nothing = two.run(Runtime())
        assert nothing is None
        assert f"env ({one.digest[:12]}) in place on 1 nodes, proven and tried at 2" in again.said
        assert two.agent.calls == ["unpack inspect"]


def test_broken_runtime_shows_here(tmp_path: Path, units: Path) -> None:
    def broken(tar: Any) -> None:
        member(tar, "bin/python", b"#!/bin/sh\necho no module named torch; exit 1\n", 0o755)

    with bench(tmp_path, tar_of(broken)) as one, pytest.raises(PhaseFailed) as caught:
        runtime_desk(one).run(Runtime())
    assert "no module named torch" in caught.value.problems[0].what


# From here on: several nodes with planned answers.


class Planned:
    """An agent that answers from a function; installing is part of the plan."""

    def __init__(self, answer: Callable[[str, str, Mapping[str, Any]], Any]) -> None:
        self.answer = answer
        self.calls: list[tuple[str, str]] = []

    def call(self, node: str, verb: str, payload: Mapping[str, Any], *, timeout_s: float = 30.0) -> dict[str, Any]:
        json.dumps(payload)
        assert verb == "fetch"
        self.calls.append((node, payload["action"]))
        reply = self.answer(node, payload["action"], payload)
        if isinstance(reply, Exception):
            raise reply
        found: dict[str, Any] = reply
        return found

    def install(self, node: str) -> str:
        return "/opt/k3ctl/node/k3node-0.pyz"


class OneManifest:
    """A hub with one manifest for every repository."""

    def manifest(self, endpoint: str, repo: str, revision: str, token: Secret | None) -> Manifest:
        return manifest_of(repo, revision, endpoint, [ManifestFile("a.safetensors", 1000, sha256="a" * 64)])


def looked(payload: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    base = {"state": "none", "missing": 1000, "allocate": 1000, "free": 1 << 40, "active": False, **more}
    return {"stages": [{"id": s["manifest"]["id"], **base} for s in payload["stages"]]}


def done(payload: Mapping[str, Any]) -> dict[str, Any]:
    said = {"state": "complete", "done": 1000, "total": 1000, "fetched": 1000}
    return {
        "stages": [{"unit": s["unit"], "status": said, "active": False, "complete": True} for s in payload["stages"]]
    }


def two_models(nodes: int) -> Any:
    base = plan(nodes)
    draft = ModelPlan("a/draft", "1" * 40, "/srv/w/a/draft/" + "1" * 40, "https://hub.test", "")
    return replace(base, models=(*base.models, draft))


def test_draft_is_staged_too_and_all_nodes_are_looked_at_once() -> None:
    agent = Planned(lambda node, action, payload: looked(payload) if action == "inspect" else done(payload))
    one = desk(two_models(3), agent, OneManifest())
    assessment, outcome = one.run(Stage())
    assert [c.node for c in assessment.changes] == ["node1", "node1", "node2", "node2", "node3", "node3"]
    assert sorted({c.text.split()[-1].split("@")[0] for c in assessment.changes}) == ["a/b", "a/draft"]
    assert agent.calls.count(("node2", "inspect")) == 1
    assert agent.calls.count(("node2", "start")) == 1
    assert outcome is not None
    assert "6.0 kB fetched" in outcome.said


def test_small_disks_refuse_before_anything_begins() -> None:
    def answer(node: str, action: str, payload: Mapping[str, Any]) -> Any:
        assert action == "inspect"
        return looked(payload, free=1 << 40 if node == "node1" else 5000)

    with pytest.raises(PhaseFailed) as caught:
        Stage().assess(desk(plan(3), Planned(answer), OneManifest()).work)
    assert [p.node for p in caught.value.problems] == ["node2", "node3"]
    assert "5.0 kB free" in caught.value.problems[0].found


def test_one_node_fails_and_the_others_go_on() -> None:
    def answer(node: str, action: str, payload: Mapping[str, Any]) -> Any:
        if action == "inspect":
            return looked(payload)
        if action == "status" and node == "node2":
            said = {"state": "failed", "reason": "disk on fire", "done": 5, "total": 1000}
            stage = {"unit": "u", "status": said, "active": False, "complete": False, "events": ["e1"]}
            return {"stages": [stage]}
        return done(payload)

    agent = Planned(answer)
    with pytest.raises(PhaseFailed) as caught:
        desk(plan(3), agent, OneManifest()).run(Stage())
    (problem,) = caught.value.problems
    assert (problem.node, problem.evidence) == ("node2", "e1")
    assert "disk on fire" in problem.what
    assert ("node3", "status") in agent.calls


class Leaping:
    """A clock that leaps a minute at each look."""

    def __init__(self) -> None:
        self.at = 0.0

    def monotonic(self) -> float:
        self.at += 60
        return self.at


def lost(times: int, monkeypatch: pytest.MonkeyPatch, error: K3ctlError) -> Desk:
    monkeypatch.setattr("k3ctl.phases.follow.LOST_WAIT_S", 0.01)
    failures = [0]

    def answer(node: str, action: str, payload: Mapping[str, Any]) -> Any:
        if action == "inspect":
            return looked(payload)
        if action == "status" and failures[0] < times:
            failures[0] += 1
            return error
        return done(payload)

    return desk(plan(1), Planned(answer), OneManifest(), clock=Leaping())


def test_lost_contact_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one = lost(2, monkeypatch, Unreachable(Problem(what="no route", found="timeout")))
    one.run(Stage())
    assert one.said().count("lost contact (timeout)") == 1
    assert one.said().count("answers again") == 1


def test_lost_contact_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    one = lost(99, monkeypatch, Unreachable(Problem(what="no route", found="timeout")))
    with pytest.raises(Unreachable):
        one.run(Stage())


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"stages": []},
        {"stages": [{"id": "x"}]},
        {"stages": [{"id": "x", "state": "fine", "missing": 0}]},
        {"stages": 3},
    ],
)
def test_answers_that_make_no_sense(reply: dict[str, Any]) -> None:
    with pytest.raises(AgentFailed, match="makes no sense"):
        Stage().assess(desk(plan(1), Planned(lambda *_: reply), OneManifest()).work)


def test_damaged_note_is_not_used() -> None:
    agent = Planned(lambda node, action, payload: looked(payload, state="complete", missing=0, proven_at="t"))
    one = desk(plan(1), agent, OneManifest())
    Stage().assess(one.work)
    (name,) = one.store.notes
    good = one.store.notes[name]
    for bad in ("", "{}", good.replace("1000", "1001"), good.replace("a/b", "a/c")):
        one.store.notes[name] = bad
        Stage().assess(one.work)
        assert one.store.notes[name] == good
    assert one.said().count("is not used") == 4
