"""Runs the phases of a command as a dependency graph: what does not wait for another runs beside it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace

from k3ctl.errors import InternalError, Interrupted, K3ctlError, Problem
from k3ctl.events import PhaseEnded, PhaseReporter, PhaseStarted, Sink
from k3ctl.phases import selection
from k3ctl.phases.base import Outcome, Phase, Work
from k3ctl.protocols import Clock
from k3ctl.stop import StopFlag


@dataclass(frozen=True)
class RunResult:
    """How a command ended, in phase order: outcomes of phases that ended well, errors of those that did not.

    `detached` holds phases that were asked to let go because another one failed: their work on the nodes goes on.
    """

    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    errors: Mapping[str, K3ctlError] = field(default_factory=dict)
    detached: Mapping[str, Interrupted] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True when every phase ended well."""
        return not self.errors and not self.detached


def run(
    phases: Sequence[Phase],
    template: Work,
    *,
    sink: Sink,
    stop: StopFlag,
    clock: Clock,
    guard: Callable[[], AbstractContextManager[object]] | None = None,
) -> RunResult:
    """Run all phases that the options select.

    `template` is a Work whose `done`, `report` and `stop` are filled in per phase. `guard` (the cluster lock) is
    entered once, after the essential phases and before any other. When a phase fails, phases that run beside it are
    asked to detach: what they started on the nodes goes on by itself.
    """
    selection.check_names(phases, template.options)
    limited = len(template.nodes) < len(template.cluster.inventory.nodes)
    reasons = selection.skipped(phases, template.options, limited=limited)
    graph = _Graph(template, sink, stop, clock)
    for phase in phases:
        if phase.name in reasons:
            graph.outcomes[phase.name] = Outcome("skipped", reasons[phase.name])
    chosen = [phase for phase in phases if phase.name not in reasons]
    rest = [phase for phase in chosen if not phase.essential]
    with ExitStack() as stack:
        graph.run([phase for phase in chosen if phase.essential])
        if rest and not graph.errors and not stop.is_set():
            if guard is not None:
                stack.enter_context(guard())
            graph.run(rest)
    return graph.result([phase.name for phase in phases])


class _Graph:
    """What one call of `run` collects while phases start and end."""

    def __init__(self, template: Work, sink: Sink, stop: StopFlag, clock: Clock) -> None:
        self._template = template
        self._sink = sink
        self._stop = stop
        self._siblings = StopFlag(parent=stop)
        self._clock = clock
        self.outcomes: dict[str, Outcome] = {}
        self.errors: dict[str, K3ctlError] = {}
        self.detached: dict[str, Interrupted] = {}

    def run(self, phases: Sequence[Phase]) -> None:
        """Start each phase as soon as what it needs has ended; start none after a failure or a stop."""
        waiting = list(phases)
        own = {phase.name for phase in phases}
        running: dict[Future[Outcome], Phase] = {}
        with ThreadPoolExecutor(max_workers=max(1, len(waiting)), thread_name_prefix="phase") as pool:
            while True:
                for phase in [] if self._siblings.is_set() else list(waiting):
                    if all(need in self.outcomes or need not in own for need in phase.needs):
                        waiting.remove(phase)
                        running[pool.submit(self._one, phase)] = phase
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    self._settle(future, running.pop(future))

    def result(self, order: Sequence[str]) -> RunResult:
        """All that was collected, in phase order."""
        return RunResult(
            {name: self.outcomes[name] for name in order if name in self.outcomes},
            {name: self.errors[name] for name in order if name in self.errors},
            {name: self.detached[name] for name in order if name in self.detached},
        )

    def _settle(self, future: Future[Outcome], phase: Phase) -> None:
        """File the end of one phase under outcomes, errors or detached."""
        try:
            self.outcomes[phase.name] = future.result()
        except Interrupted as error:
            if self._stop.is_set() or not self.errors:
                self.errors[phase.name] = error
            else:
                self.detached[phase.name] = error
            self._siblings.set()
        except K3ctlError as error:
            self.errors[phase.name] = error
            self._siblings.set()

    def _one(self, phase: Phase) -> Outcome:
        """One phase from start to end, with its events; every exception leaves as a typed error of that phase."""
        began = self._clock.monotonic()
        try:
            outcome = self._assess_and_apply(phase)
        except K3ctlError as error:
            seconds = self._clock.monotonic() - began
            ended = PhaseEnded(phase.name, "failed", str(error), seconds)
            self._sink(replace(ended, status="interrupted") if isinstance(error, Interrupted) else ended)
            raise type(error)(*(p if p.phase else replace(p, phase=phase.name) for p in error.problems)) from error
        except Exception as error:
            self._sink(PhaseEnded(phase.name, "failed", f"internal error: {error}", self._clock.monotonic() - began))
            raise InternalError(
                Problem(
                    what=f"{type(error).__name__}: {error}",
                    phase=phase.name,
                    fix="this is a bug in k3ctl: please report it with the text below",
                    evidence=traceback.format_exc(),
                )
            ) from error
        outcome = replace(outcome, seconds=self._clock.monotonic() - began)
        self._sink(PhaseEnded(phase.name, outcome.status, outcome.said, outcome.seconds))
        return outcome

    def _assess_and_apply(self, phase: Phase) -> Outcome:
        """Assess one phase and, where something must change and the run is not dry, apply it."""
        work = replace(
            self._template,
            done=dict(self.outcomes),
            report=PhaseReporter(phase.name, self._sink),
            stop=self._siblings,
        )
        self._sink(PhaseStarted(phase.name, phase.title, "assess"))
        assessment = phase.assess(work)
        if not assessment.changes:
            return Outcome("unchanged", assessment.said, assessment.value)
        if work.options.dry_run:
            return Outcome("planned", assessment.said, assessment.value, assessment.changes)
        if work.stop.is_set():
            raise Interrupted(Problem(what=f"{phase.title} was not started", fix="run the command again"))
        self._sink(PhaseStarted(phase.name, phase.title, "apply"))
        return replace(phase.apply(work, assessment), changes=assessment.changes)
