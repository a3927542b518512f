"""Put the serving environment in place: one proven archive on every node, unpacked and tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from k3ctl import fanout
from k3ctl.errors import ConfigError, PhaseFailed, Problem
from k3ctl.phases.base import Assessment, Change, Outcome, Work
from k3ctl.phases.follow import follow, not_begun
from k3ctl.staging.job import runtime_request, runtime_unit
from k3ctl.staging.look import Look, read_looks
from k3ctl.staging.progress import Snapshot, read_snapshot
from k3ctl.units import size

START_S = 60.0
ASK_S = 15.0


@dataclass(frozen=True)
class RuntimeReady:
    """The serving environment that every node of the run has."""

    name: str
    digest: str
    path: str
    bin: str


@dataclass(frozen=True)
class Runtime:
    """Fetch, unpack and try the serving environment, beside provisioning."""

    name: str = "runtime"
    title: str = "Install the serving environment"
    needs: tuple[str, ...] = ("preflight",)
    scope: Literal["host", "gang"] = "host"
    essential: bool = False

    def assess(self, work: Work) -> Assessment:
        """One look at each node. Refuses when a disk cannot take it."""
        runtime = work.plan.runtime
        if runtime.kind != "bundle":
            raise ConfigError(
                Problem(what="this k3ctl installs bundles only", key="engine", found=runtime.kind, expected="bundle")
            )
        looks = _look(work)
        value = RuntimeReady(runtime.name, runtime.digest, runtime.path, runtime.bin)
        todo = tuple(node for node, look in looks.items() if look.state != "complete")
        title = f"{runtime.name} ({runtime.digest[:12]})"
        if not todo:
            times = sorted({look.proven_at for look in looks.values()})
            when = times[0] if len(times) == 1 else f"{times[0]} to {times[-1]}"
            return Assessment(f"{title} in place on {len(looks)} nodes, proven and tried at {when}", value=value)
        _refuse_small_disks(work, {node: looks[node] for node in todo})
        changes = tuple(Change(_change(runtime.bytes, looks[node], title), node) for node in todo)
        return Assessment(f"{title} to install on {len(todo)} of {len(work.nodes)} nodes", changes, value, todo)

    def apply(self, work: Work, assessment: Assessment) -> Outcome:
        """Start the agents on all nodes and follow them; a node that fails does not hold up the others."""
        assert isinstance(assessment.plan, tuple)  # noqa: S101 - apply is only called with our own assessment
        unit = runtime_unit(work.plan.cluster)

        def one(node: str) -> Snapshot:
            call = work.world.agent.call
            agent = work.world.agent.install(node)
            if work.stop.is_set():
                raise not_begun(node)
            call(node, "unpack", _request(work, "start", agent), timeout_s=START_S)
            asked = _request(work, "status")
            return follow(work, node, lambda: read_snapshot(call(node, "unpack", asked, timeout_s=ASK_S)), unit)

        fanout.each(assessment.plan, one).all()
        runtime = work.plan.runtime
        said = f"{runtime.name} ({runtime.digest[:12]}) in place on {len(work.nodes)} nodes, proven and tried"
        return Outcome("changed", said, value=assessment.value)


def _request(work: Work, action: str, agent: str = "") -> dict[str, Any]:
    plan = work.plan
    return runtime_request(action, plan.cluster, plan.runtime, plan.expected.min_runtime_bytes, agent)


def _look(work: Work) -> Mapping[str, Look]:
    request = _request(work, "inspect")

    def look(node: str) -> Look:
        reply = work.world.agent.call(node, "unpack", request, timeout_s=START_S)
        ids = [stage.get("id", "") for stage in reply.get("stages", ())]
        looks = read_looks(reply, ids)
        if len(looks) != 1:
            raise PhaseFailed(Problem(what="the agent answered about several environments", found=str(len(looks))))
        return looks[0]

    return fanout.each(work.nodes, look).all()


def _change(total: int, look: Look, title: str) -> str:
    text = f"fetch {size(look.missing)} of {size(total)}, unpack and try {title}"
    return text + (" (under way)" if look.active else "")


def _refuse_small_disks(work: Work, looks: Mapping[str, Look]) -> None:
    """Nothing is begun on a disk that cannot take it; where a try has begun, the agent judges: it sees what is left."""
    need = work.plan.expected.min_runtime_bytes
    short = {node: look.free for node, look in looks.items() if look.state == "none" and look.free < need}
    if short:
        raise PhaseFailed(
            *(
                Problem(
                    what="not enough room for the serving environment",
                    found=f"{size(free)} free at {work.plan.runtime.path}",
                    expected=f"{size(need)} (archive and content together)",
                    fix="free space there, or set paths.runtimes in cluster.yml to a larger disk",
                    node=node,
                )
                for node, free in short.items()
            )
        )
