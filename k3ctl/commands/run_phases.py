"""Run an ordered list of phases over a cluster: view, lock, signals, records, exit code."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from k3ctl.commands.output import Output
from k3ctl.commands.session import Session, open_session
from k3ctl.edge.ansible_scratch import clean_dead
from k3ctl.edge.signals import stop_on_signal
from k3ctl.errors import ExitCode, Interrupted, K3ctlError
from k3ctl.events import Event, PhaseEnded, PhaseReporter, PhaseStarted, Sink
from k3ctl.phases import runner, selection
from k3ctl.phases.base import Options, Outcome, Phase, Work
from k3ctl.stop import StopFlag
from k3ctl.view.live import LiveView
from k3ctl.view.plain import PlainView
from k3ctl.view.sinks import EventLog, junction

VALIDATE = ("validate", "Validate the inventory")


@dataclass(frozen=True)
class Ran:
    """What came of a run. `session` is None when the inventory was not good."""

    code: int
    seconds: float
    session: Session | None = None
    result: runner.RunResult | None = None


def run_phases(
    phases: Sequence[Phase], options: Options, out: Output, command: str, *, reads_only: bool = False
) -> Ran:
    """Validate, then run the phases. Everything that went wrong is already said when this returns.

    `reads_only` commands and dry runs take no lock: they may run beside another operator's work.
    """
    began = time.monotonic()
    stop = StopFlag()
    titles = [VALIDATE, *((phase.name, phase.title) for phase in phases)]
    view: LiveView | PlainView = (
        LiveView(out.talk, titles, time.monotonic) if out.live else PlainView(out.line, time.monotonic)
    )
    late: list[Event] = []
    with stop_on_signal(stop, lambda text: out.line(text, "yellow")), view:
        try:
            session = _validate(options, junction(view, late.append), command)
            sink = junction(view, _event_log(session, late))
            lock = None if reads_only or options.dry_run else f"{command} {options.inventory}"
            result = _run(phases, options, session, sink, stop, lock)
        except K3ctlError as error:
            failure: K3ctlError | None = error
        else:
            failure = None
    seconds = time.monotonic() - began
    if failure is not None:
        return Ran(out.error(failure), seconds)
    _record(session, options, result, command, seconds)
    return Ran(_say_errors(result, out, stop), seconds, session, result)


def _validate(options: Options, sink: Sink, command: str) -> Session:
    """The first phase: it makes the cluster and the plan, before there is anything to connect to."""
    began = time.monotonic()
    sink(PhaseStarted(*VALIDATE, "assess"))
    try:
        session = open_session(options.inventory, PhaseReporter(command, sink).say)
        selection.choose_nodes(session.node_names, options.limit)
    except K3ctlError as error:
        sink(PhaseEnded(VALIDATE[0], "failed", str(error), time.monotonic() - began))
        raise
    sink(PhaseEnded(VALIDATE[0], "unchanged", session.summary, time.monotonic() - began))
    return session


def _run(
    phases: Sequence[Phase], options: Options, session: Session, sink: Sink, stop: StopFlag, locked_as: str | None
) -> runner.RunResult:
    """Run the graph, under the cluster's lock in the name of `locked_as` unless that is None."""
    nodes = selection.choose_nodes(session.node_names, options.limit)
    reporter = PhaseReporter("lock", sink)
    template = Work(session.cluster, session.plan, nodes, options, session.world, {}, reporter, stop)
    with ExitStack() as stack:
        stack.callback(session.close)
        if locked_as is None:
            return runner.run(phases, template, sink=sink, stop=stop, clock=session.world.clock)
        lock = session.lock(locked_as, lambda text: reporter.say(text, level="error"))
        stack.callback(lock.release)
        _note(lock.take_local(), reporter)
        clean_dead(session.state_dir)

        @contextmanager
        def guard() -> Iterator[None]:
            _note(lock.take_head(), reporter)
            yield

        return runner.run(phases, template, sink=sink, stop=stop, clock=session.world.clock, guard=guard)


def _note(text: str, reporter: PhaseReporter) -> None:
    if text:
        reporter.say(text, level="warn")


def _event_log(session: Session, before: list[Event]) -> Sink:
    """The run's event log; what happened before the run directory was known is written first."""
    store = session.world.store
    log = EventLog(lambda line: store.append("events.jsonl", line), session.world.clock.now)
    for event in before:
        log(event)
    return log


def _record(session: Session, options: Options, result: runner.RunResult, command: str, seconds: float) -> None:
    """Write plan and result into the run directory."""
    store = session.world.store
    store.write("plan.json", json.dumps(dataclasses.asdict(session.plan), indent=2, sort_keys=True, default=str))
    record = {
        "command": command,
        "inventory": options.inventory,
        "ok": result.ok,
        "seconds": round(seconds, 3),
        "phases": {name: phase_record(outcome) for name, outcome in result.outcomes.items()},
        "errors": {
            name: [dataclasses.asdict(problem) for problem in error.problems]
            for name, error in {**result.errors, **result.detached}.items()
        },
    }
    store.write("result.json", json.dumps(record, indent=2, sort_keys=True, default=str))


def phase_record(outcome: Outcome) -> dict[str, object]:
    """One phase's end as plain data."""
    return {
        "status": outcome.status,
        "said": outcome.said,
        "seconds": round(outcome.seconds, 3),
        "changes": [{"node": change.node, "text": change.text, "diff": change.diff} for change in outcome.changes],
    }


def _say_errors(result: runner.RunResult, out: Output, stop: StopFlag) -> int:
    """Every error of the run; the exit code is that of the first that is not an interruption."""
    codes = []
    for error in result.errors.values():
        style = "yellow" if isinstance(error, Interrupted) else "red"
        out.problems(error.problems, style)
        codes.append(int(error.code))
    for error in result.detached.values():
        out.problems(error.problems, "yellow")
    if stop.is_set():
        return int(ExitCode.INTERRUPTED)
    return codes[0] if codes else int(ExitCode.OK)
