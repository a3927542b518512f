"""`k3ctl logs`: the ranks' logs, merged."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass

from k3ctl import fanout
from k3ctl.commands.output import Output
from k3ctl.commands.session import Session, open_session
from k3ctl.edge.signals import stop_on_signal
from k3ctl.errors import ExitCode
from k3ctl.launch import ask
from k3ctl.phases.selection import choose_nodes
from k3ctl.stop import StopFlag
from k3ctl.watch.log_lines import LogLine, merge, parse, text


@dataclass(frozen=True)
class LogOptions:
    """`tail` lines of each rank first; `follow` goes on; `previous` is the attempt before this one."""

    follow: bool
    tail: int
    previous: bool
    limit: tuple[str, ...] = ()


def logs(inventory: str, options: LogOptions, out: Output) -> int:
    """Print until the end, or with follow until Ctrl-C: reading never touches the engine."""
    session = open_session(inventory, out.line)
    stop = StopFlag()
    try:
        nodes = choose_nodes(session.node_names, options.limit)
        with stop_on_signal(stop, lambda _text: None):
            found = (
                _history(session, nodes, options, stop)
                if not options.follow
                else _follow(session, nodes, options, stop, out)
            )
    finally:
        session.close()
    for line in merge(found):
        _print(line, out)
    return int(ExitCode.OK)


def _history(session: Session, nodes: tuple[str, ...], options: LogOptions, stop: StopFlag) -> list[LogLine]:
    """The last lines of every rank. Raises with every node's problem."""

    def read(node: str) -> list[LogLine]:
        lines: list[LogLine] = []
        payload = ask.logs(session.plan, node, tail=options.tail, follow=False, previous=options.previous)
        session.world.agent.lines(node, "logs", payload, lambda line: lines.append(parse(node, line)), stop)
        return lines

    return [line for lines in fanout.each(nodes, read).all().values() for line in lines]


def _follow(
    session: Session, nodes: tuple[str, ...], options: LogOptions, stop: StopFlag, out: Output
) -> list[LogLine]:
    """History first, in one order; then lines as they come. A node that goes away is said; the others go on."""
    for line in merge(_history(session, nodes, options, stop)):
        _print(line, out)
    lock = threading.Lock()

    def show(node: str, line: str) -> None:
        with lock:
            _print(parse(node, line), out)

    def watch(node: str) -> None:
        payload = ask.logs(session.plan, node, tail=0, follow=True, previous=False)
        session.world.agent.lines(node, "logs", payload, lambda line: show(node, line), stop)

    for error in fanout.each(nodes, watch).errors.values():
        out.problems(error.problems)
    return []


def _print(line: LogLine, out: Output) -> None:
    out.text(json.dumps(asdict(line), sort_keys=True) if out.form == "json" else text(line))
