"""The phases stage and runtime on a lab, in this process or in one that a test kills; and the hub's side of it."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3ctl.commands.session import Session, open_session
from k3ctl.events import Event, PhaseReporter, Progress
from k3ctl.lab.layout import Layout
from k3ctl.phases.base import Assessment, Options, Outcome, Phase, Work
from k3ctl.phases.runtime import Runtime
from k3ctl.phases.stage import Stage
from k3ctl.plan import ModelPlan
from k3ctl.protocols import Command
from k3ctl.stop import StopFlag

PHASES: dict[str, Phase] = {"stage": Stage(), "runtime": Runtime()}


@dataclass(frozen=True)
class Site:
    """A lab with a hub, and a session on it."""

    inventory: Path
    session: Session

    @property
    def model(self) -> ModelPlan:
        return self.session.plan.model

    def work(self, stop: StopFlag | None = None, events: list[Event] | None = None) -> Work:
        report = PhaseReporter("stage", (events if events is not None else []).append)
        options, session = Options(str(self.inventory)), self.session
        return Work(
            session.cluster, session.plan, session.node_names, options, session.world, {}, report, stop or StopFlag()
        )

    def run(self, phase: str, **more: Any) -> tuple[Assessment, Outcome | None]:
        work = self.work(**more)
        assessment = PHASES[phase].assess(work)
        return assessment, PHASES[phase].apply(work, assessment) if assessment.changes else None

    def shell(self, node: str, text: str, timeout_s: float = 60.0) -> str:
        done = self.session.world.remote.run(node, Command(("sh", "-c", text), sudo=True, timeout_s=timeout_s))
        assert done.ok, f"{text}: {done.stderr}"
        return done.stdout

    def everywhere(self, text: str) -> list[str]:
        return [self.shell(node, text) for node in self.session.node_names]

    def clear_weights(self) -> None:
        """No units, no weights, no manifests kept."""
        self.everywhere("systemctl stop 'k3ctl-*-stage-*.service'; rm -rf /srv/k3ctl/weights")

    def faults(self, *rules: dict[str, Any]) -> None:
        """Put a fault script in force at the hub."""
        request = urllib.request.Request(self.model.endpoint + "/_faults", json.dumps(rules).encode(), method="POST")  # noqa: S310
        with urllib.request.urlopen(request, timeout=10) as reply:  # noqa: S310
            assert reply.status == 200

    def log(self) -> list[dict[str, Any]]:
        """The hub's request log."""
        file = Layout(self.inventory.name, self.inventory).hub / "requests.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()]

    def status(self, node: str) -> dict[str, Any]:
        """What the agent of the served model says there."""
        text = self.shell(node, f"cat {self.model.path}/.k3stage/*/status.json 2>/dev/null || echo '{{}}'")
        said: dict[str, Any] = json.loads(text)
        return said


def fetched(lines: list[dict[str, Any]]) -> Counter[tuple[str, str]]:
    """How often each client got a file from the content network to its end: (client, path) -> times."""
    whole = [(line["client"], line["path"]) for line in lines if line["server"] == "cdn" and not line["broken"]]
    return Counter(whole)


def site_of(inventory: Path) -> Site:
    return Site(inventory, open_session(str(inventory), lambda text: sys.stderr.write(text + "\n") and None))


def share_done(events: list[Event]) -> float:
    """The furthest that any node was seen."""
    return max((e.done / e.total for e in events if isinstance(e, Progress) and e.total), default=0.0)


if __name__ == "__main__":  # python -m tests.lab.stage_fixtures INVENTORY PHASE: to be killed by a test
    site = site_of(Path(sys.argv[1]))
    print(site.run(sys.argv[2]))
