"""Connect to the nodes: SSH, root, Python, clock, and that every name is a machine of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from k3ctl import fanout
from k3ctl.errors import ConfigError, K3ctlError, Problem, Unreachable
from k3ctl.inventory import Node
from k3ctl.phases.base import Assessment, Outcome, Work
from k3ctl.protocols import Command, CommandResult
from k3ctl.units import duration

PYTHON = (3, 8)
CLOCK_S = 1.0
# sudo looks up the host's own name; one that does not resolve costs a DNS timeout with every single command.
SLOW_SUDO_S = 3.0
# One line, and free of characters that odd login shells touch. $1 is the node's Python.
HELLO = (
    'echo "now=$(date +%s.%N)"; echo "uid=$(id -u)"; echo "user=$(id -un)"; '
    'echo "hostname=$(cat /proc/sys/kernel/hostname)"; echo "machine_id=$(cat /etc/machine-id 2>/dev/null)"; '
    'echo "boot_id=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)"; '
    'echo "os=$(. /etc/os-release 2>/dev/null; echo "$PRETTY_NAME")"; echo "arch=$(uname -m)"; '
    'if v=$("$1" -I -c "import sys; print(*sys.version_info[:3], sep=chr(46))" 2>&1); '
    'then echo "python=$v"; else echo "python_error=$v" | head -n 1; fi'
)


@dataclass(frozen=True)
class NodeHello:
    """What a node says at the first contact.

    `clock_s`: seconds its clock is ahead of this machine's (negative: behind), exact to about half of `answer_s`.
    `connect_s`: what the connection took.
    """

    node: str
    hostname: str
    machine_id: str
    boot_id: str
    python: str
    os: str
    arch: str
    user: str
    uid: int
    sudo: Literal["root", "sudo"]
    clock_s: float
    connect_s: float
    answer_s: float


@dataclass(frozen=True)
class Connected:
    """All nodes of this run. `offsets` is seconds by node against the median of the nodes' clocks."""

    nodes: tuple[NodeHello, ...]
    offsets: Mapping[str, float]
    controller_offset: float

    def node(self, name: str) -> NodeHello:
        """What that node said; KeyError when it is not of this run."""
        for hello in self.nodes:
            if hello.node == name:
                return hello
        raise KeyError(name)


@dataclass(frozen=True)
class Connect:
    """Reads only. Every node is tried, and every node's problems are told."""

    name: str = "connect"
    title: str = "Connect to the nodes"
    needs: tuple[str, ...] = ()
    scope: Literal["host", "gang"] = "host"
    essential: bool = True

    def assess(self, work: Work) -> Assessment:
        """Say hello to all nodes at once. Raises Unreachable with the problems of all nodes, or ConfigError."""
        out = fanout.each(work.nodes, lambda name: hello(work, work.cluster.inventory.node(name)))
        hellos = tuple(out.results.values())
        twins = same_machine(hellos)
        if out.errors:
            raise Unreachable(*_in_phase((*_problems(out.errors), *twins)))
        if twins:
            raise ConfigError(*_in_phase(twins))
        connected = compare(hellos)
        for node, text in remarks(connected):
            work.report.say(text, node=node, level="warn")
        return Assessment(said(connected), value=connected)

    def apply(self, work: Work, assessment: Assessment) -> Outcome:  # noqa: ARG002  every phase is called alike
        """Nothing to do."""
        return Outcome("unchanged", assessment.said, assessment.value)


def hello(work: Work, node: Node) -> NodeHello:
    """First contact with one node. Raises Unreachable with everything that is wrong there."""
    began = work.world.clock.monotonic()
    command = Command(("sh", "-c", HELLO, "sh", node.ssh.python))
    result = work.world.remote.run(node.name, command)
    ended, elapsed = work.world.clock.now(), work.world.clock.monotonic() - began
    facts = dict(line.partition("=")[::2] for line in result.stdout.splitlines())
    problems = [*_silent(node.name, result, facts), *_python(node, facts)]
    root = facts.get("uid") == "0"
    if not root and not no_answer(facts):
        problems += _sudo(work, node.name)
    if problems:
        raise Unreachable(*problems)
    return NodeHello(
        node=node.name,
        hostname=facts["hostname"],
        machine_id=facts["machine_id"],
        boot_id=facts["boot_id"],
        python=facts["python"],
        os=facts["os"],
        arch=facts["arch"],
        user=facts["user"],
        uid=int(facts["uid"]),
        sudo="root" if root else "sudo",
        clock_s=round(float(facts["now"]) - (ended - result.seconds / 2), 3),
        connect_s=round(max(0.0, elapsed - result.seconds), 3),
        answer_s=result.seconds,
    )


def no_answer(facts: Mapping[str, str]) -> bool:
    """True when the answer lacks what every Linux host has."""
    return not all(facts.get(key) for key in ("now", "uid", "hostname", "boot_id", "arch"))


def _silent(node: str, result: CommandResult, facts: Mapping[str, str]) -> Iterable[Problem]:
    if no_answer(facts):
        yield Problem(
            what="the host does not answer like a Linux server",
            found=f"status {result.status}: {(result.stderr or result.stdout).strip()[-200:] or 'nothing'}",
            expected="Ubuntu 22.04 or 24.04, or Debian 12, with a POSIX shell",
            fix="log in by hand and look: `uname -a; cat /etc/os-release`",
            node=node,
            evidence=result.stderr.strip()[-800:],
        )


def _python(node: Node, facts: Mapping[str, str]) -> Iterable[Problem]:
    """Found by the shell, so that a host without Python can say so."""
    if no_answer(facts):
        return
    wanted = ".".join(map(str, PYTHON))
    fix = "on the host: `apt-get update && apt-get install -y python3`, or set ansible_python_interpreter"
    version = facts.get("python", "")
    numbers = tuple(int(part) for part in version.split(".") if part.isdigit())
    if not version:
        yield Problem(
            what="Python is missing on the host",
            found=f"no {node.ssh.python} ({facts.get('python_error', 'no answer')})",
            expected=f"Python {wanted} or newer",
            fix=fix,
            node=node.name,
        )
    elif numbers[:2] < PYTHON:
        yield Problem(
            what="Python on the host is too old",
            found=f"{node.ssh.python} is {version}",
            expected=f"Python {wanted} or newer",
            fix=fix,
            node=node.name,
        )


def _sudo(work: Work, name: str) -> list[Problem]:
    """Root must work before anything is changed anywhere, or a run ends half-way."""
    try:
        result = work.world.remote.run(name, Command(("id", "-u"), sudo=True))
    except K3ctlError as error:
        return list(error.problems)
    if result.stdout.strip() != "0":
        found = f"status {result.status}: {(result.stderr or result.stdout).strip()[-200:]}"
        return [Problem(what="sudo gives no root", found=found, expected="uid 0", fix="look at sudoers", node=name)]
    if result.seconds > SLOW_SUDO_S:
        text = f"sudo took {duration(result.seconds)}: does the host's own name resolve there (`getent hosts NAME`)?"
        work.report.say(text, node=name, level="warn")
    return []


def same_machine(hellos: Iterable[NodeHello]) -> list[Problem]:
    """Names that lead to one machine: both ids are equal. Cloned images share the machine id, but never a boot."""
    seen: dict[tuple[str, str], list[str]] = {}
    for one in hellos:
        seen.setdefault((one.machine_id, one.boot_id), []).append(one.node)
    return [
        Problem(
            what="two entries of the inventory are the same host",
            found=f"{' and '.join(names)}: machine-id {machine or 'none'}, boot-id {boot}",
            expected="a machine of its own behind every name",
            fix="correct ansible_host and ansible_port of one of them",
        )
        for (machine, boot), names in seen.items()
        if len(names) > 1
    ]


def compare(hellos: tuple[NodeHello, ...]) -> Connected:
    """Clocks against the median of all nodes, so that this machine's own clock does not matter."""
    middle = median(one.clock_s for one in hellos) if hellos else 0.0
    offsets = {one.node: round(one.clock_s - middle, 3) for one in hellos}
    return Connected(hellos, offsets, round(-middle, 3))


def remarks(connected: Connected) -> Iterable[tuple[str, str]]:
    """(node or '', text) of what is odd but no reason to stop here; preflight judges the clocks."""
    for node, offset in connected.offsets.items():
        if abs(offset) > CLOCK_S:
            yield node, f"its clock is {_ahead(offset)} the median of all nodes"
    if abs(connected.controller_offset) > CLOCK_S:
        yield "", f"the clock of this machine is {_ahead(connected.controller_offset)} the median of the nodes"
    by_machine: dict[str, list[str]] = {}
    for one in connected.nodes:
        by_machine.setdefault(one.machine_id, []).append(one.node)
    for machine, names in by_machine.items():
        if machine and len(names) > 1:
            yield "", f"{', '.join(names)} have the same machine-id {machine}: are they clones of one image?"
        if not machine:
            yield "", f"{', '.join(names)}: no machine-id"


def said(connected: Connected) -> str:
    """The phase's one line."""
    count = len(connected.nodes)
    pythons = ", ".join(sorted({one.python for one in connected.nodes}))
    spread = max((abs(offset) for offset in connected.offsets.values()), default=0.0)
    users = ", ".join(sorted({f"{one.user} by sudo" if one.sudo == "sudo" else one.user for one in connected.nodes}))
    clocks = f", clocks within {spread:.2f} s" if count > 1 else ""
    return f"{count} host{'s' if count != 1 else ''} as {users}, Python {pythons}{clocks}"


def _ahead(offset: float) -> str:
    return f"{duration(abs(offset))} {'ahead of' if offset > 0 else 'behind'}"


def _problems(errors: Mapping[str, K3ctlError]) -> Iterable[Problem]:
    for node, error in errors.items():
        for problem in error.problems:
            yield problem if problem.node else replace(problem, node=node)


def _in_phase(problems: Iterable[Problem]) -> list[Problem]:
    return [replace(problem, phase="connect") for problem in problems]
