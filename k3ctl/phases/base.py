"""What a phase is: it assesses (reads only) and, where something must change, applies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from k3ctl.cluster import Cluster
from k3ctl.errors import InternalError, Problem
from k3ctl.events import Reporter
from k3ctl.phases.world import World
from k3ctl.plan import Plan
from k3ctl.protocols import Stop

T = TypeVar("T")


@dataclass(frozen=True)
class Change:
    """One thing that applying would do: printed by a dry run, `node` empty for the whole cluster."""

    text: str
    node: str = ""
    diff: str = ""


@dataclass(frozen=True)
class Assessment:
    """What a phase found. No changes means that the phase is done; `said` is one line and gives the reason.

    `value` is the phase's frozen result for later phases (looked up by type); `plan` is for the phase's own apply.
    """

    said: str
    changes: tuple[Change, ...] = ()
    value: object = None
    plan: object = None


@dataclass(frozen=True)
class Outcome:
    """How a phase ended."""

    status: Literal["changed", "unchanged", "planned", "skipped"]
    said: str
    value: object = None
    changes: tuple[Change, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Options:
    """What the command line asked of a run."""

    inventory: str
    limit: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    start_from: str = ""
    dry_run: bool = False
    yes: bool = False
    timeout_s: float = 0.0
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Work:
    """Everything a phase may use: cluster, plan, options, the outside world, earlier outcomes, reporter, stop flag.

    `nodes` are the names that this run works on, in rank order: all, or those of --limit.
    """

    cluster: Cluster
    plan: Plan
    nodes: tuple[str, ...]
    options: Options
    world: World
    done: Mapping[str, Outcome]
    report: Reporter
    stop: Stop

    def get(self, kind: type[T]) -> T:
        """The value of that type that an earlier phase left."""
        for outcome in self.done.values():
            if isinstance(outcome.value, kind):
                return outcome.value
        raise InternalError(Problem(what=f"no earlier phase left a {kind.__name__}", fix="report this as a bug"))


class Phase(Protocol):
    """One step of a command.

    name: as on the command line. title: verb and object. needs: names of phases that must have ended before.
    scope: `host` (each node by itself, obeys --limit) or `gang` (all nodes together; with --limit it is skipped).
    essential: runs even with --only and --from (connect).
    """

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def needs(self) -> tuple[str, ...]: ...
    @property
    def scope(self) -> Literal["host", "gang"]: ...
    @property
    def essential(self) -> bool: ...

    def assess(self, work: Work) -> Assessment:
        """Look, change nothing. Raises a K3ctlError when the phase cannot go on."""

    def apply(self, work: Work, assessment: Assessment) -> Outcome:
        """Make the changes of the assessment. Called only when there are some and the run is not dry."""
