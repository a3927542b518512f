"""Remove what k3ctl installed for this cluster; weights only when asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from k3ctl import fanout
from k3ctl.errors import PhaseFailed, Problem
from k3ctl.phases.base import Assessment, Change, Outcome, Work
from k3ctl.protocols import Command, PlayEvent

# $1 is a pattern of units, the rest are paths.
LOOK = (
    'systemctl list-units --plain --no-legend "$1" | cut -d " " -f 1; shift; '
    'for p; do [ -e "$p" ] && printf "%s\\n" "$p"; done; true'
)


@dataclass(frozen=True)
class Found:
    """What is there on one node: transient units that still fetch or unpack, and paths to remove."""

    units: tuple[str, ...]
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Remove:
    """Unit, configuration, state and logs of the cluster; with `purge_weights` also the folders of its models.

    An interrupted run may have left units that still fetch weights or unpack: they end first, or they would make their
    folders anew.
    """

    purge_weights: bool = False
    name: str = "remove"
    title: str = "Remove what k3ctl installed"
    needs: tuple[str, ...] = ("stop",)
    scope: Literal["host", "gang"] = "host"
    essential: bool = False

    def assess(self, work: Work) -> Assessment:
        """List the folders that are there."""
        paths = self._paths(work)
        ours = re.compile(rf"k3ctl-{re.escape(work.plan.cluster)}-(stage-[0-9a-f]+|runtime)\.service")

        def look(node: str) -> Found:
            argv = ("sh", "-c", LOOK, "sh", f"k3ctl-{work.plan.cluster}-*", *paths)
            lines = work.world.remote.run(node, Command(argv, sudo=True)).stdout.splitlines()
            return Found(
                tuple(line for line in lines if ours.fullmatch(line)), tuple(line for line in lines if line in paths)
            )

        found = fanout.each(work.nodes, look).all()
        changes = [Change(f"stop unit {unit}", node) for node, seen in found.items() for unit in seen.units]
        changes += [Change(f"remove {path}", node) for node, seen in found.items() for path in seen.paths]
        kept = "" if self.purge_weights else "; weights and runtimes stay"
        said = f"{len(changes)} units, folders and files to end or remove" if changes else "nothing is installed"
        return Assessment(said + kept, tuple(changes), plan=found)

    def apply(self, work: Work, assessment: Assessment) -> Outcome:
        """Units that still fetch, then unit and configuration through the playbook, then the folders k3ctl made."""
        found = cast("Mapping[str, Found]", assessment.plan)
        self._end_units(work, {node: seen.units for node, seen in found.items() if seen.units})
        result = work.world.ansible.run(
            "down", work.nodes, self._variables(work), check=False, stop=work.stop, on_event=_tell(work)
        )
        if result.status != "successful":
            failed = {**result.failures, **result.unreachable} or {"": f"the playbook down ended as {result.status}"}
            raise PhaseFailed(
                *(Problem(what=text, node=node, fix="run k3ctl down again") for node, text in failed.items())
            )
        paths = self._paths(work)

        def remove(node: str) -> None:
            done = work.world.remote.run(node, Command(("rm", "-rf", "--", *paths), sudo=True, timeout_s=600))
            if not done.ok:
                raise PhaseFailed(Problem(what="could not remove folders", node=node, evidence=done.stderr))

        fanout.each(work.nodes, remove).all()
        count = sum(len(seen.paths) for seen in found.values())
        return Outcome("changed", f"removed {count} folders and files on {len(work.nodes)} nodes")

    def _end_units(self, work: Work, units: Mapping[str, tuple[str, ...]]) -> None:
        def end(node: str) -> None:
            done = work.world.remote.run(node, Command(("systemctl", "stop", *units[node]), sudo=True, timeout_s=120))
            if not done.ok:
                raise PhaseFailed(
                    Problem(what=f"could not stop {', '.join(units[node])}", node=node, evidence=done.stderr)
                )

        fanout.each(tuple(units), end).all()

    def _paths(self, work: Work) -> tuple[str, ...]:
        plan = work.plan
        paths = [f"/etc/systemd/system/k3ctl-{plan.cluster}.service", plan.config_dir, plan.state_dir, plan.log_dir]
        if self.purge_weights:
            paths += [model.path for model in plan.models]
        return tuple(paths)

    def _variables(self, work: Work) -> dict[str, dict[str, object]]:
        plan = work.plan
        values: dict[str, object] = {
            "engine_cluster": plan.cluster,
            "engine_unit_name": f"k3ctl-{plan.cluster}.service",
            "engine_config_dir": plan.config_dir,
        }
        return dict.fromkeys(work.nodes, values)


def _tell(work: Work) -> Callable[[PlayEvent], None]:
    def tell(event: PlayEvent) -> None:
        if event.kind in ("failed", "unreachable"):
            work.report.say(f"{event.task}: {event.message}", node=event.node, level="error")

    return tell
