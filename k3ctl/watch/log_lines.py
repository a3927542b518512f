"""Lines of the ranks' logs, merged for people."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class LogLine:
    """One line of one rank's log. `ts` is UTC text with milliseconds, `stream` stdout, stderr or k3ctl."""

    node: str
    rank: int
    attempt: int
    ts: str
    stream: str
    text: str


def parse(node: str, line: str) -> LogLine:
    """A line of the agent's verb `logs`. A line that is no record is kept as it is: nothing is dropped silently."""
    try:
        record = json.loads(line)
        return LogLine(
            node, int(record["rank"]), int(record["attempt"]), str(record["ts"]), str(record["stream"]),
            str(record["text"]),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError):
        return LogLine(node, -1, 0, "", "k3ctl", line)


def text(line: LogLine, *, with_time: bool = True) -> str:
    """`rank1 k3lab2 #3 22:29:45.546 | text`, a mark before lines that k3ctl itself wrote."""
    time = line.ts[11:23] + " " if with_time and len(line.ts) >= 23 else ""
    mark = "k3ctl: " if line.stream == "k3ctl" else ""
    return f"rank{line.rank} {line.node} #{line.attempt} {time}| {mark}{line.text}"


def merge(lines: list[LogLine]) -> list[LogLine]:
    """History of several ranks in one order: by time, then rank; lines without a time stay after the one before."""
    keyed: list[tuple[str, int, int, LogLine]] = []
    last: dict[str, str] = {}
    for position, line in enumerate(lines):
        last[line.node] = line.ts or last.get(line.node, "")
        keyed.append((last[line.node], line.rank, position, line))
    return [line for *_, line in sorted(keyed, key=lambda entry: entry[:3])]
