"""A strict stand-in for Ansible: a playbook that no test planned is an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from k3ctl.protocols import PlayEvent, PlayResult, Stop


@dataclass
class FakeAnsible:
    """protocols.Ansible. `planned` holds one result per expected run, in order; `runs` what was asked for."""

    planned: list[tuple[str, bool, PlayResult, tuple[PlayEvent, ...]]] = field(default_factory=list)
    runs: list[tuple[str, tuple[str, ...], Mapping[str, Mapping[str, Any]], bool]] = field(default_factory=list)
    contents: Mapping[str, str] = field(default_factory=lambda: {"provision": "c" * 64})

    def plan(self, playbook: str, result: PlayResult, *events: PlayEvent, check: bool = False) -> None:
        """Expect one run of that playbook, which gives these events and this result."""
        self.planned.append((playbook, check, result, events))

    def digest(self, playbook: str) -> str:
        """The digest that the test gave this playbook."""
        return self.contents[playbook]

    def run(
        self,
        playbook: str,
        nodes: tuple[str, ...],
        variables: Mapping[str, Mapping[str, Any]],
        *,
        check: bool,
        stop: Stop,
        on_event: Callable[[PlayEvent], None],
        timeout_s: float = 3600.0,
    ) -> PlayResult:
        """Hand out the next planned result."""
        self.runs.append((playbook, nodes, variables, check))
        assert self.planned, f"nobody planned a run of {playbook}"
        name, planned_check, result, events = self.planned.pop(0)
        assert (playbook, check) == (name, planned_check)
        for event in events:
            on_event(event)
        return result
