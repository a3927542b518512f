"""Staging and the serving environment on real hosts: systemd units, SSH, the lab's hub, and everything killed once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from k3ctl.errors import Interrupted
from k3ctl.events import Event
from tests.lab.conftest import Maker, refuse
from tests.lab.stage_fixtures import Site, fetched, share_done, site_of
from tests.local.stage_fixtures import wait_for

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]
SLOW = {"path": "/cdn/*", "kind": "slow", "rate": 300_000, "count": 0}


@pytest.fixture(scope="module")
def site(new_inventory: Maker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two hosts and a hub; K3CTL_TEST_STAGE_LAB=<inventory folder> uses a lab that is up already."""
    given = os.environ.get("K3CTL_TEST_STAGE_LAB", "")
    if given:
        inventory = Path(given).resolve()
    else:
        made = new_inventory("s", hub=True)
        created = made.command("create", "{}", timeout_s=1500)
        if not created.ok:
            refuse(f"the lab could not be made:\n{created.stderr}")
        inventory = made.inventory
    found = site_of(inventory)
    yield found
    found.session.close()


@pytest.fixture
def fresh(site: Site) -> Iterator[Site]:
    """The site without weights and faults."""
    site.faults()
    site.clear_weights()
    yield site
    site.faults()


def test_every_file_crosses_once_and_again_is_no_change(fresh: Site) -> None:
    before = len(fresh.log())
    _, outcome = fresh.run("stage")
    assert outcome is not None
    lines = fresh.log()[before:]
    assert set(fetched(lines).values()) == {1}
    assert len({client for client, _ in fetched(lines)}) == len(fresh.session.node_names)
    assert not any(line["leak"] for line in lines)
    begun = time.monotonic()
    again, nothing = fresh.run("stage")
    assert nothing is None
    assert time.monotonic() - begun < 5
    assert f"whole on {len(fresh.session.node_names)} nodes" in again.said
    assert len(fresh.log()) == before + len(lines)
    # An independent witness on the node itself, on files of the hub's own sha256.
    for text in fresh.everywhere(f"cd {fresh.model.path} && find . -name '*.safetensors' | wc -l"):
        assert int(text) == 96
    assert set(fresh.everywhere(f"find {fresh.model.path}/.k3stage -name 'job.json' -o -name '*.part'")) == {""}


def test_agent_killed_at_work_goes_on_by_itself(fresh: Site) -> None:
    """systemd starts it again after 2 s; nothing that was whole is fetched twice."""
    node = fresh.session.node_names[1]
    fresh.faults(SLOW)
    before = len(fresh.log())
    events: list[Event] = []
    killed: list[str] = []

    def kill() -> None:
        wait_for(lambda: share_done(events) > 0.4, timeout=120)
        fresh.shell(node, "systemctl kill --signal=KILL 'k3ctl-*-stage-*.service'")
        killed.append(node)

    killer = threading.Thread(target=kill)
    killer.start()
    _, outcome = fresh.run("stage", events=events)
    killer.join()
    assert killed == [node]
    assert outcome is not None
    lines = fresh.log()[before:]
    assert set(fetched(lines).values()) == {1}
    assert any(line["broken"] for line in lines)
    resumed = fresh.shell(node, f"grep -h '\"resumed\"' {fresh.model.path}/.k3stage/*/events.jsonl")
    assert int(resumed.split('"text": "')[1].split()[0]) > 0.2 * fresh.status(node)["total"]


def test_controller_killed_and_run_again(fresh: Site) -> None:
    """The units go on without it; the next run joins them and nothing is fetched twice."""
    fresh.faults(SLOW)
    before = len(fresh.log())
    first = subprocess.Popen(
        [sys.executable, "-m", "tests.lab.stage_fixtures", str(fresh.inventory), "stage"], stdout=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: fresh.status(fresh.session.node_names[0]).get("done", 0) > 1_000_000, timeout=120)
    finally:
        first.kill()
        first.wait()
    assessment, outcome = fresh.run("stage")
    assert all("under way" in change.text for change in assessment.changes if "draft" not in change.text)
    assert outcome is not None
    assert set(fetched(fresh.log()[before:]).values()) == {1}


def test_stop_flag_lets_go_and_says_how_to_end_it(fresh: Site) -> None:
    from k3ctl.stop import StopFlag

    fresh.faults(SLOW)
    stop = StopFlag()
    threading.Timer(4.0, stop.set).start()
    with pytest.raises(Interrupted) as caught:
        fresh.run("stage", stop=stop)
    nodes = fresh.session.node_names
    assert sorted(p.node for p in caught.value.problems) == sorted(nodes)
    for problem in caught.value.problems:
        assert "goes on by itself" in problem.what
        fresh.shell(problem.node, problem.fix.split("to end it: ")[1])  # the command that it names works
    for node in nodes:
        assert fresh.status(node)["state"] == "stopped"


def test_cut_and_flipped_on_the_way(fresh: Site) -> None:
    fresh.faults(
        {"path": "/cdn/*model-00003*", "kind": "cut", "at": 50_000, "count": 2},
        {"path": "/cdn/*model-00005*", "kind": "flip", "at": 70_000, "count": 1},
        {"path": "/cdn/*model-00007*", "kind": "status", "status": 429, "headers": {"Retry-After": "1"}, "count": 1},
        {"path": "/cdn/*model-00009*", "kind": "expired", "count": 1},
    )
    _, outcome = fresh.run("stage")
    assert outcome is not None
    assert "retries" in outcome.said
    payload = {"stages": [{"dest": d, "id": m.id} for d, m in outcome.value.manifests.items()], "full": True}  # type: ignore[attr-defined]
    for node in fresh.session.node_names:
        verified = fresh.session.world.agent.call(node, "verify", payload)
        assert [stage["state"] for stage in verified["stages"]] == ["whole", "whole"]


def test_runtime_killed_while_unpacking(site: Site, processes: Callable[[str], list[str]]) -> None:
    """The environment comes up all the same, the archive is fetched once, and nothing is left over."""
    runtime = site.session.plan.runtime
    site.faults()
    site.everywhere(
        f"systemctl stop 'k3ctl-*-runtime.service'; rm -rf {runtime.path}* {Path(runtime.path).parent}/.k3work"
    )
    before = len(site.log())
    node = site.session.node_names[1]
    killed: list[str] = []

    def kill() -> None:
        command = f"cat {Path(runtime.path).parent}/.k3work/*/status.json 2>/dev/null || true"
        wait_for(lambda: '"note": "unpacking"' in site.shell(node, command), timeout=120)
        site.shell(node, "systemctl kill --signal=KILL 'k3ctl-*-runtime.service'")
        killed.append(node)

    killer = threading.Thread(target=kill)
    killer.start()
    _, outcome = site.run("runtime")
    killer.join()
    assert killed == [node]
    assert outcome is not None
    archives = [line for line in site.log()[before:] if "/files/runtimes/" in line["path"]]
    for client in {line["client"] for line in archives}:
        sizes = [line["bytes"] for line in archives if line["client"] == client and line["status"] == 206]
        assert sum(sizes) == runtime.bytes
    assert set(
        site.everywhere(
            f"ls -d {runtime.path}.partial {Path(runtime.path).parent}/.k3work/*/archive 2>/dev/null || true"
        )
    ) == {""}
    assert set(site.everywhere("pgrep -x 'tar|zstd' || true")) == {""}
    begun = time.monotonic()
    again, nothing = site.run("runtime")
    assert nothing is None
    assert "in place on" in again.said
    assert time.monotonic() - begun < 5
