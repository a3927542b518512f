"""Check the nodes: one probe each, one round over all pairs, then every check; refuses when something would fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from k3ctl import fanout
from k3ctl.errors import Interrupted, K3ctlError, PreflightRefused, Problem
from k3ctl.facts.node import Heard, NodeFacts
from k3ctl.fanout import FanOut
from k3ctl.phases.base import Assessment, Outcome, Work
from k3ctl.preflight import request
from k3ctl.preflight.capture import Capture, PairRound
from k3ctl.preflight.checks import CHECKS
from k3ctl.preflight.finding import Finding
from k3ctl.preflight.judge import judge
from k3ctl.preflight.report import PreflightReport

T = TypeVar("T")
_POLL_S = 0.2
_TITLES: Mapping[str, str] = {check.name: check.title for check in CHECKS}


@dataclass(frozen=True)
class Preflight:
    """Reads only: it never has changes, so that nothing is left to apply."""

    name: str = "preflight"
    title: str = "Check the nodes"
    needs: tuple[str, ...] = ("connect",)
    scope: Literal["host", "gang"] = "host"
    essential: bool = False

    def assess(self, work: Work) -> Assessment:
        """Probe, reach, judge. The report is kept in the run directory, also when it refuses."""
        heard = _probe(work)
        _go_on(work)
        capture = Capture(heard, _reach(work, Capture(heard).facts()))
        today = datetime.fromtimestamp(work.world.clock.now(), UTC).date()
        report = judge(work.plan, work.cluster.spec.waivers, capture.facts(), capture.pairs.facts(), today)
        work.world.store.write("capture.json", capture.to_json())
        work.world.store.write("preflight.json", report.to_json())
        _tell(work, report)
        if report.verdict != "ok":
            raise PreflightRefused(*(problem(finding) for finding in report.blocking))
        return Assessment(report.said, value=report)

    def apply(self, work: Work, assessment: Assessment) -> Outcome:  # noqa: ARG002  every phase is called alike
        """Nothing to do."""
        return Outcome("unchanged", assessment.said, assessment.value)


def problem(finding: Finding) -> Problem:
    """A blocking finding as an error names it."""
    title = _TITLES.get(finding.check, "")
    return Problem(
        what=f"{finding.check}: {'could not be judged' if finding.severity == 'unknown' else f'not so: {title}'}",
        found=finding.found,
        expected=finding.expected,
        fix=finding.fix,
        node=finding.node,
        phase="preflight",
        key=finding.check,
        evidence=finding.evidence,
    )


def _go_on(work: Work) -> None:
    if work.stop.is_set():
        raise Interrupted(Problem(what="preflight was stopped", found="nothing was changed", phase="preflight"))


def _probe(work: Work) -> dict[str, Heard]:
    """Every node's answer, or why there is none: a host that is lost here is a finding, not the end."""
    clock = work.world.clock

    def ask(node: str) -> Heard:
        sent = clock.now()
        payload = request.probe_request(work.plan, node)
        reply = work.world.agent.call(node, "probe", payload, timeout_s=request.PROBE_TIMEOUT_S)
        return Heard(reply, sent, clock.now())

    work.report.say(f"asking {len(work.nodes)} nodes about themselves")
    answers = _each(work, work.nodes, ask)
    lost = {node: Heard(None, error=_words(error)) for node, error in answers.errors.items()}
    return {node: answers.results.get(node) or lost[node] for node in work.nodes}


def _reach(work: Work, facts: Mapping[str, NodeFacts]) -> PairRound:
    """The round over all pairs of nodes whose planned address is up."""
    nodes = request.reach_nodes(work.plan, facts)
    if len(nodes) < 2:
        return PairRound(without="fewer than two nodes have their planned address up")
    ports, ephemeral = request.reach_ports(work.plan, nodes, facts)
    if not ports:
        return PairRound(without="no port is free on all nodes")
    by_name = {node.name: node for node in nodes}

    def ask(name: str) -> dict[str, Any]:
        payload = request.reach_request(by_name[name], nodes, ports)
        return work.world.agent.call(name, "reach", payload, timeout_s=request.REACH_TIMEOUT_S)

    work.report.say(f"trying every pair of {len(nodes)} nodes on ports {', '.join(map(str, ports))}")
    answers = _each(work, by_name, ask)
    return PairRound(ports, ephemeral, answers.results, {node: _words(error) for node, error in answers.errors.items()})


def _each(work: Work, nodes: Iterable[str], ask: Callable[[str], T]) -> FanOut[T]:
    """All nodes at once; when the user asks to stop, the answers are not waited for: the calls end with the session."""
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="preflight")
    asked = pool.submit(fanout.each, nodes, ask)
    pool.shutdown(wait=False)
    while True:
        try:
            return asked.result(timeout=_POLL_S)
        except TimeoutError:
            if not asked.done():
                _go_on(work)


def _words(error: K3ctlError) -> str:
    first = error.problems[0]
    return f"{first.what}: {first.found}" if first.found else first.what


def _tell(work: Work, report: PreflightReport) -> None:
    for finding in report.findings:
        if finding.severity == "warn" and not finding.waived:
            work.report.say(f"{finding.check}: {finding.found}; {finding.fix}", node=finding.node, level="warn")
    for waiver in report.waivers:
        work.report.say(waiver.said, level="info" if waiver.state == "applied" else "warn")
    if report.verdict != "ok":  # a good end is said by the phase itself
        work.report.say(report.said, level="error")
