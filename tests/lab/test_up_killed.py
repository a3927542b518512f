"""k3ctl dies by SIGKILL in every phase on the way from bare hosts to an endpoint; each time the same command goes on.

Nothing is reset in between: what a killed run left is what the next one finds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.lab.up_fixtures import PHASES, Operator, fetched_twice, wait_until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]
SLOW = {"path": "/cdn/*", "kind": "slow", "rate": 30_000, "count": 0}


@dataclass(frozen=True)
class Moment:
    """When to kill: a line of the plain view, then something that is seen from outside."""

    phase: str
    line: str
    seen: Callable[[Operator], bool] = lambda _: True


def unit_runs(kind: str) -> Callable[[Operator], bool]:
    """Some host runs such a unit of the cluster."""

    def look(operator: Operator) -> bool:
        command = f"systemctl is-active --quiet 'k3ctl-{operator.cluster}{kind}.service' && echo yes || true"
        return any(operator.everywhere(command))

    return look


def some_weights_came(operator: Operator) -> bool:
    return sum(line["server"] == "cdn" and not line["broken"] for line in operator.hub_log()) >= 4


def process_runs(text: str) -> Callable[[Operator], bool]:
    """Some host has such a process."""
    return lambda operator: any(operator.everywhere(f"pgrep -f '[{text[0]}]{text[1:]}' || true"))


def play_runs(operator: Operator) -> bool:
    return any("serve.yml" in line for line in operator.children())


MOMENTS = (
    Moment("connect", r"validate: no change"),
    Moment("preflight", r"preflight: asking"),
    Moment("runtime", r"runtime: Install", unit_runs("-runtime")),
    Moment("stage", r"stage: Stage", some_weights_came),
    Moment("provision", r"provision \S+: changed: "),
    Moment("burn-in", r"burn-in: Burn-in", process_runs("burnin")),
    Moment("launch", r"launch: Launch", play_runs),
    Moment("launch", r"launch: Launch", unit_runs("")),
    Moment("ready", r"ready: Wait"),
)


@pytest.fixture(scope="module")
def bare(operator: Operator) -> Iterator[Operator]:
    """Machines as they come, and a hub that is slow."""
    operator.make_lab(bare=True)
    operator.faults(SLOW)
    yield operator
    operator.faults()


@pytest.mark.parametrize("moment", MOMENTS, ids=[f"{i}-{moment.phase}" for i, moment in enumerate(MOMENTS)])
def test_killed_in(bare: Operator, moment: Moment) -> None:
    running = bare.start("up")
    running.saw(moment.line, timeout_s=600)
    wait_until(f"{moment}:\n{running.err}", lambda: moment.seen(bare), 120, 0.1)
    running.kill()
    assert "Traceback" not in running.err
    bare.alone()
    if moment.phase == "stage":
        bare.faults()
    if moment.phase == "burn-in":
        wait_until("the burn-in ends with its controller", lambda: bare.left() == [], 30)


def test_then_up_finishes(bare: Operator) -> None:
    began, engine = time.monotonic(), bare.engine()
    done = bare.up()
    assert {done.statuses[phase] for phase in PHASES[:7]} == {"unchanged"}
    assert (done.statuses["ready"], done.statuses["smoke"]) == ("changed", "changed")
    assert bare.engine() == engine, "the engine that was started before the kill was started again"
    assert "took over the lock on this machine of a dead holder" in done.err
    assert bare.ask()[0] == 200
    print(f"the last up: {time.monotonic() - began:.1f} s")


def test_nothing_whole_was_fetched_twice(bare: Operator) -> None:
    lines = bare.hub_log()
    assert len({line["client"] for line in lines if line["server"] == "cdn"}) == len(bare.lab.nodes)
    assert fetched_twice(lines) == []
    assert not any(line["leak"] for line in lines)


def test_nothing_is_left_over(bare: Operator) -> None:
    assert bare.left() == []
    bare.alone()
    assert [path.name for path in bare.folder.iterdir() if path.name.startswith("play-")] == []
    assert [path for path in bare.folder.rglob(".*") if path.is_file()] == []  # halves of files that were being written
