"""The exact texts of one rank for people to read: unit, environment, command lines. The API key is masked. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from shlex import quote

from k3ctl.errors import ConfigError, Problem
from k3ctl.launch.render import render
from k3ctl.plan import Plan
from k3ctl.secret import Secret

# Which file the agent is and which Python runs it is found on the node; a plan cannot know either.
AGENT = "/opt/k3ctl/node/k3node.pyz"
PYTHON = "/usr/bin/python3"


@dataclass(frozen=True)
class RankText:
    """What is installed and started on one node."""

    rank: int
    node: str
    unit: str
    unit_text: str
    env_file: str
    env_text: str
    supervisor_argv: tuple[str, ...]
    engine_argv: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """All of it, one flag a line."""
        yield f"# rank {self.rank} on {self.node}"
        yield f"\n# /etc/systemd/system/{self.unit}"
        yield self.unit_text.rstrip()
        yield f"\n# {self.env_file}"
        yield self.env_text.rstrip()
        yield "\n# started by the unit's gang, which adds the rank's program"
        yield from folded(self.supervisor_argv)
        yield "\n# started by the rank's program"
        yield from folded(self.engine_argv)


def rank_text(plan: Plan, rank: int) -> RankText:
    """The texts of the node with that rank of the whole plan. ConfigError when there is none."""
    node = next((node for node in plan.nodes if node.rank == rank), None)
    if node is None:
        raise ConfigError(
            Problem(
                what="the plan has no such rank",
                key="--show",
                found=str(rank),
                expected=f"0 to {len(plan.nodes) - 1}",
            )
        )
    part = plan.replica(node.replica)
    names = [each.name for each in part.nodes]
    launch = render(part, dict.fromkeys(names, AGENT), dict.fromkeys(names, PYTHON), Secret("***")).node(node.name)
    told = json.loads(launch.launch_text)
    return RankText(
        rank=rank,
        node=node.name,
        unit=launch.unit,
        unit_text=launch.unit_text,
        env_file=told["env_file"],
        env_text=launch.env_text.reveal(),
        supervisor_argv=tuple(told["torchrun_argv"]),
        engine_argv=tuple(told["engine_argv"]),
    )


def rank_number(asked: str) -> int:
    """'rank 1' or '1' to 1. ConfigError for anything else."""
    word = asked.strip().removeprefix("rank").strip()
    if not word.isdecimal():
        raise ConfigError(Problem(what="that names no rank", key="--show", found=asked, expected="rank 0"))
    return int(word)


def folded(argv: Iterable[str]) -> Iterator[str]:
    """A command line with every flag on a line of its own, its values beside it."""
    current: list[str] = []
    for word in argv:
        if word.startswith("-") and current:
            yield f"{' '.join(current)} \\"
            current = ["   ", quote(word)]
        else:
            current.append(quote(word))
    if current:
        yield " ".join(current)
