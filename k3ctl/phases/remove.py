"""Remove what k3ctl installed for this cluster; weights only when asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from k3ctl import fanout
from k3ctl.errors import PhaseFailed, Problem
from k3ctl.phases.base import Assessment, Change, Outcome, Work
from k3ctl.protocols import Command, PlayEvent


@dataclass(frozen=True)
class Remove:
    """Unit, configuration, state and logs of the cluster; with `purge_weights` also the folders of its models."""

    purge_weights: bool = False
    name: str = "remove"
    title: str = "Remove what k3ctl installed"
    needs: tuple[str, ...] = ("stop",)
    scope: Literal["host", "gang"] = "host"
    essential: bool = False

    def assess(self, work: Work) -> Assessment:
        """List the folders that are there."""
        paths = self._paths(work)

        def there(node: str) -> tuple[str, ...]:
            script = 'for p; do [ -e "$p" ] && printf "%s\\n" "$p"; done; true'
            result = work.world.remote.run(node, Command(("sh", "-c", script, "sh", *paths), sudo=True))
            return tuple(line for line in result.stdout.splitlines() if line in paths)

        found = fanout.each(work.nodes, there).all()
        changes = tuple(Change(f"remove {path}", node) for node, there_ in found.items() for path in there_)
        kept = "" if self.purge_weights else "; weights and runtimes stay"
        return Assessment(f"nothing of this cluster is installed{kept}", changes, plan=found)

    def apply(self, work: Work, assessment: Assessment) -> Outcome:
        """Unit and configuration through the playbook `down`, then the folders that k3ctl made."""
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
        count = len(assessment.changes)
        return Outcome("changed", f"removed {count} folders and files on {len(work.nodes)} nodes")

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
