"""k3ctl dies by SIGKILL in every phase on the way to an endpoint; each time the same command goes on.

Every phase has something to do at first, and nothing is reset in between: the next run finds what a killed one left.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.lab.up_fixtures import PHASES, Operator, fetched_twice, wait_until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]
SLOW = {"path": "/cdn/*", "kind": "slow", "rate": 30_000, "count": 0}


@dataclass(frozen=True)
class Moment:
    """When to kill: a line of the plain view, then something that is seen from outside.

    `seen` gets the number of requests that the hub had answered before.
    """

    phase: str
    line: str
    seen: Callable[[Operator, int], bool] = lambda *_: True


def unit_runs(kind: str) -> Callable[[Operator, int], bool]:
    """Some host runs such a unit of the cluster."""

    def look(operator: Operator, _before: int) -> bool:
        command = f"systemctl is-active --quiet 'k3ctl-{operator.cluster}{kind}.service' && echo yes || true"
        return any(operator.everywhere(command))

    return look


def some_weights_came(operator: Operator, before: int) -> bool:
    return len([1 for line in operator.hub_log()[before:] if line["server"] == "cdn" and not line["broken"]]) >= 4


def process_runs(text: str) -> Callable[[Operator, int], bool]:
    """Some host has such a process."""
    return lambda operator, _: any(operator.everywhere(f"pgrep -f '[{text[0]}]{text[1:]}' || true"))


def plays(operator: Operator) -> list[str]:
    """Folders of plays on the controller."""
    return [path.name for path in operator.folder.glob("play-*")]


def play_runs(operator: Operator, _before: int) -> bool:
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
def undone(operator: Operator) -> Iterator[tuple[Operator, int]]:
    """Work for every phase, a hub that is slow, and the number of requests that it had answered before."""
    cleared = operator.run("down", "--purge-weights", "-y", timeout_s=300)
    assert cleared.status == 0, cleared.err
    shutil.rmtree(operator.folder / "notes", ignore_errors=True)
    # One host's serving environment is enough: unpacking it costs a minute of both cores. Deleting it is as slow.
    last, there = operator.lab.nodes[-1], "/opt/k3ctl/runtimes"
    operator.on(last, f"[ ! -d {there} ] || mv {there} /opt/k3ctl-gone-$(date +%s)")
    operator.faults(SLOW)
    yield operator, len(operator.hub_log())
    operator.faults()


@pytest.fixture
def site(undone: tuple[Operator, int]) -> Operator:
    return undone[0]


@pytest.mark.parametrize("moment", MOMENTS, ids=[f"{i}-{moment.phase}" for i, moment in enumerate(MOMENTS)])
def test_killed_in(undone: tuple[Operator, int], moment: Moment) -> None:
    site, before = undone
    running = site.start("up")
    running.saw(moment.line, timeout_s=600)
    wait_until(f"{moment}:\n{running.err}", lambda: moment.seen(site, before), 120, 0.1)
    running.kill()
    assert "Traceback" not in running.err
    site.alone()
    if moment.phase == "stage":
        site.faults()
    if moment.seen is play_runs:  # its variables hold the API key
        assert plays(site) != []
        assert site.run("stop").status == 0
        assert plays(site) == []
    if moment.phase == "burn-in":
        wait_until("the burn-in ends with its controller", lambda: site.left() == [], 30)


def test_then_up_finishes(site: Operator) -> None:
    began, engine = time.monotonic(), site.engine()
    done = site.up()
    assert {done.statuses[phase] for phase in PHASES[:7]} == {"unchanged"}
    assert (done.statuses["ready"], done.statuses["smoke"]) == ("changed", "changed")
    assert site.engine() == engine, "the engine that was started before the kill was started again"
    assert "took over the lock on this machine of a dead holder" in done.err
    assert site.ask()[0] == 200
    print(f"the last up: {time.monotonic() - began:.1f} s")


def test_nothing_whole_was_fetched_twice(undone: tuple[Operator, int]) -> None:
    site, before = undone
    lines = site.hub_log()[before:]
    assert len({line["client"] for line in lines if line["server"] == "cdn"}) == len(site.lab.nodes)
    assert any("/files/runtimes/" in line["path"] for line in lines)
    assert fetched_twice(lines) == []
    assert not any(line["leak"] for line in lines)


def test_nothing_is_left_over(site: Operator) -> None:
    assert site.left() == []
    site.alone()
    assert plays(site) == []
    assert [path for path in site.folder.rglob(".*") if path.is_file()] == []  # halves of files that were being written
