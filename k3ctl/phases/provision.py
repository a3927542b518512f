"""Provision the nodes: packages, limits, kernel values, names, the serving user and its folders, through Ansible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NoReturn

from k3ctl import __version__, fanout
from k3ctl.errors import Interrupted, K3ctlError, PhaseFailed, Problem, Unreachable
from k3ctl.phases.base import Assessment, Change, Outcome, Work
from k3ctl.protocols import PlayResult
from k3ctl.provision.hints import hint
from k3ctl.provision.progress import PlayProgress
from k3ctl.provision.stamp import NodeState, Stamp, judge, read_command
from k3ctl.provision.variables import node_variables, stamp_path, stamp_variables, users_variables, work_digest

PLAYBOOK = "provision"
ROLES = "base and serving_user"
LIMIT_SECONDS = 3600.0


@dataclass(frozen=True)
class Provisioned:
    """What provisioning left: nodes that ask for a reboot, with the packages that want it."""

    reboot_wanted: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class _Todo:
    """Nodes to apply to, and the variables of each."""

    nodes: tuple[str, ...]
    variables: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Provision:
    """Bring every node to the state that the roles describe.

    A node notes what was applied to it. An equal note makes this phase one round trip; `--only provision` applies the
    roles all the same.
    """

    name: str = "provision"
    title: str = "Provision the nodes"
    needs: tuple[str, ...] = ("preflight",)
    scope: Literal["host", "gang"] = "host"
    essential: bool = False

    def assess(self, work: Work) -> Assessment:
        """Compare each node's note with what would be applied; a dry run asks Ansible itself, with --check --diff."""
        states = _states(work)
        wanted = {node: _digest(work, node) for node in work.nodes}
        insist = self.name in work.options.only
        stale = tuple(node for node in work.nodes if insist or not _same(states[node], wanted[node]))
        value = Provisioned({node: state.reboot_packages for node, state in states.items() if state.reboot_wanted})
        if not stale:
            _tell_reboots(work, value)
            return Assessment(f"{_unchanged(states)}; --only provision applies them again", value=value)
        todo = _Todo(stale, {node: _variables(work, states[node], wanted[node]) for node in stale})
        if work.options.dry_run:
            return self._rehearse(work, todo, value)
        changes = tuple(Change(f"apply roles {ROLES}: {_reason(states[node], wanted[node])}", node) for node in stale)
        return Assessment(f"roles to apply on {len(stale)} of {len(work.nodes)} nodes", changes, value=value, plan=todo)

    def apply(self, work: Work, assessment: Assessment) -> Outcome:
        """Run the playbook for real; nodes that fail do not hold up the others."""
        assert isinstance(assessment.plan, _Todo)  # noqa: S101 - apply is only called with our own assessment
        result = _play(work, assessment.plan, check=False)
        value = Provisioned({node: s.reboot_packages for node, s in _states(work).items() if s.reboot_wanted})
        _tell_reboots(work, value)
        nodes = assessment.plan.nodes
        if not result.changed_tasks:
            return Outcome("unchanged", f"every task found its result on {', '.join(nodes)}", value=value)
        counts = ", ".join(f"{node} {result.changed.get(node, 0)}" for node in nodes)
        changes = tuple(Change(task, node) for node, task in result.changed_tasks)
        return Outcome("changed", f"changed tasks: {counts}", value=value, changes=changes)

    def _rehearse(self, work: Work, todo: _Todo, value: Provisioned) -> Assessment:
        progress = PlayProgress(work.report)
        _play(work, todo, check=True, progress=progress)
        changes = tuple(Change(e.task, e.node, e.diff) for e in progress.changed)
        _tell_reboots(work, value)
        said = f"--check found {len(changes)} tasks that would change something" if changes else _NOTHING
        return Assessment(said, changes, value=value, plan=todo)


_NOTHING = "Ansible's --check finds nothing to change"


def _states(work: Work) -> Mapping[str, NodeState]:
    path = stamp_path(work.cluster)

    def look(node: str) -> NodeState:
        python = work.cluster.inventory.node(node).ssh.python
        return judge(work.world.remote.run(node, read_command(python, path)))

    return fanout.each(work.nodes, look).all()


def _digest(work: Work, node: str) -> str:
    users = users_variables(work.cluster.inventory.node(node).variables)
    content = work.world.ansible.digest(PLAYBOOK)
    return work_digest(content, __version__, node_variables(work.cluster, work.plan), users)


def _same(state: NodeState, digest: str) -> bool:
    return state.stamp is not None and state.stamp.digest == digest


def _variables(work: Work, state: NodeState, digest: str) -> dict[str, Any]:
    """Role variables of one node. The same work keeps its note, so that applying it again changes nothing."""
    stamp = state.stamp
    if stamp is None or stamp.digest != digest:
        now = datetime.fromtimestamp(work.world.clock.now(), UTC).isoformat(timespec="seconds")
        stamp = Stamp(digest, __version__, now)
    return {**node_variables(work.cluster, work.plan), **stamp_variables(work.cluster, stamp.text)}


def _reason(state: NodeState, digest: str) -> str:
    if state.stamp is None:
        return "this host was not provisioned before"
    if state.stamp.digest == digest:
        return f"asked for again, they are as applied at {state.stamp.applied}"
    return f"they differ from what k3ctl {state.stamp.k3ctl} applied at {state.stamp.applied}"


def _unchanged(states: Mapping[str, NodeState]) -> str:
    times = sorted({state.stamp.applied for state in states.values() if state.stamp})
    when = times[0] if len(times) == 1 else f"{times[0]} to {times[-1]}"
    return f"same roles and variables as applied at {when}"


def _tell_reboots(work: Work, value: Provisioned) -> None:
    for node, packages in value.reboot_wanted.items():
        why = f" (for {', '.join(packages)})" if packages else ""
        work.report.say(f"this host asks for a reboot{why}; k3ctl does not reboot it", node=node, level="warn")


def _play(work: Work, todo: _Todo, *, check: bool, progress: PlayProgress | None = None) -> PlayResult:
    """Run the playbook with its events on view; raises the error that the result calls for."""
    progress = progress or PlayProgress(work.report)
    result = work.world.ansible.run(
        PLAYBOOK,
        todo.nodes,
        todo.variables,
        check=check,
        stop=work.stop,
        on_event=progress.take,
        timeout_s=work.options.timeout_s or LIMIT_SECONDS,
    )
    work.world.store.write("provision-check.log" if check else "provision.log", progress.log)
    if result.status == "canceled":
        raise Interrupted(*_stopped(result, "provisioning was stopped"))
    if result.status == "timeout":
        raise PhaseFailed(*_stopped(result, "provisioning took too long"))
    if result.status != "successful":
        _raise_failures(result, todo.nodes)
    return result


def _stopped(result: PlayResult, what: str) -> list[Problem]:
    fix = "run the same command again: it goes on from what is done"
    running = [
        Problem(what=what, found=f"`{task}` may still be coming to its end on the host", fix=fix, node=node)
        for node, task in result.running.items()
    ]
    return running or [Problem(what=what, fix=fix)]


def _raise_failures(result: PlayResult, nodes: tuple[str, ...]) -> NoReturn:
    failed = [_problem(node, result.failures[node], "a task failed") for node in nodes if node in result.failures]
    lost = [
        _problem(node, result.unreachable[node], "the host could not be reached")
        for node in nodes
        if node in result.unreachable
    ]
    if not failed and not lost:
        failed = [Problem(what="the playbook failed and names no host", fix="look at provision.log of this run")]
    kind: type[K3ctlError] = Unreachable if lost and not failed else PhaseFailed
    raise kind(*failed, *lost)


def _problem(node: str, text: str, what: str) -> Problem:
    first, _, rest = text.partition("\n")
    return Problem(what=what, found=first, fix=hint(text), node=node, evidence=rest)
