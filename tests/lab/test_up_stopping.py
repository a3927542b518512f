"""Ending things: stop, start and down with proof, and Ctrl-C once and twice."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import pytest

from tests.lab.up_fixtures import ENGINE_S, Done, Operator, Running, wait_until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]
INTERRUPTED = 130
AT_ONCE_S = 5.0  # with a process table to walk on a busy machine
SLOW = {"path": "/cdn/*", "kind": "slow", "rate": 30_000, "count": 0}
PORTS = (8000, 29400, 29501)


@pytest.fixture(scope="module")
def serving(operator: Operator) -> Iterator[Operator]:
    """An endpoint that answers; `up` does what is missing."""
    operator.up()
    yield operator
    operator.faults()


def plan_of(operator: Operator) -> Any:
    done = operator.run("plan", "-o", "json")
    assert done.status == 0, done.err
    return done.json


def weights(operator: Operator) -> list[str]:
    """Files of the models and how large they are, per host."""
    return operator.everywhere("cd /srv/k3ctl/weights && find . -name '*.safetensors' -printf '%p %s %i\\n' | sort")


def assert_gone(operator: Operator) -> None:
    """No process of the cluster anywhere, and its ports are free."""
    assert operator.marked() == []
    for node in operator.lab.nodes:
        assert operator.on(node, "pgrep -af '[V]LLM|[v]llm serve|[t]orchrun' || true") == ""
        listening = operator.on(node, "ss -Hltn | awk '{print $4}'").split()
        assert not {int(address.rpartition(":")[2]) for address in listening} & set(PORTS)


def test_stop_ends_every_rank(serving: Operator) -> None:
    done = serving.run("stop", "-o", "json", timeout_s=240)
    assert done.status == 0, done.err
    assert done.statuses == {"connect": "unchanged", "stop": "changed"}
    assert_gone(serving)
    assert serving.left() == []
    status = serving.run("status", "-o", "json")
    assert (status.status, status.json["verdict"]) == (1, "stopped")
    assert serving.run("status").out.startswith("stopped: ")
    again = serving.run("stop", "-o", "json")
    assert again.statuses == {"connect": "unchanged", "stop": "unchanged"}


def test_ctrl_c_while_it_loads_and_start_again(serving: Operator) -> None:
    starting = serving.start("start")
    starting.saw("ready: Wait", timeout_s=120)
    wait_until("the ranks run", lambda: all(serving.rank(n)["state"] == "running" for n in serving.lab.nodes), 120)
    engine = serving.engine()
    starting.signal(signal.SIGINT)
    done = starting.done(30)
    assert done.status == INTERRUPTED, done.err
    assert "the engine goes on loading on the nodes" in done.err
    assert "`k3ctl stop` ends it" in done.err
    serving.alone()
    again = serving.run("start", "-o", "json", timeout_s=ENGINE_S)
    assert again.status == 0, again.err
    assert again.statuses["launch"] == "unchanged"
    assert serving.engine() == engine
    assert serving.ask()[0] == 200


def test_down_removes_what_up_installed_but_weights(serving: Operator) -> None:
    before = weights(serving)
    assert all(len(text.splitlines()) > 90 for text in before)
    done = serving.run("down", "-o", "json", timeout_s=300)
    assert done.status == 0, done.err
    assert (done.statuses["stop"], done.statuses["remove"]) == ("changed", "changed")
    assert_gone(serving)
    cluster = serving.cluster
    for node in serving.lab.nodes:
        assert serving.on(node, f"find / -xdev -name '*{cluster}*' -path '*k3ctl*' -not -path '/proc/*'") == ""
        assert serving.on(node, "systemctl list-units --all --plain --no-legend 'k3ctl-*'") == ""
    assert weights(serving) == before
    status = serving.run("status", "-o", "json")
    assert (status.status, status.json["verdict"]) == (1, "stopped")
    again = serving.run("down", "-o", "json")
    assert set(again.statuses.values()) == {"unchanged"}


def test_purge_asks_first_and_takes_only_the_models(serving: Operator) -> None:
    before = weights(serving)
    models = [model["path"] for model in plan_of(serving)["models"]]
    foreign = [
        str(PurePosixPath(models[0]).parent / "0123456789/model.safetensors"),
        "/srv/k3ctl/weights/other/repo/abc/model.safetensors",
    ]
    for file in foreign:
        serving.everywhere(f"mkdir -p {PurePosixPath(file).parent} && echo mine > {file}")
    asked = serving.run("down", "--purge-weights")
    assert (asked.status, asked.out) == (2, "")
    assert "give -y to confirm. Nothing was removed." in asked.err
    dry = serving.run("down", "--purge-weights", "--dry-run")
    assert dry.status == 0, dry.err
    assert all(f"remove: {node}: remove {model}" in dry.out for node in serving.lab.nodes for model in models)
    kept = [set(text.splitlines()) for text in before]
    assert all(old <= set(text.splitlines()) for old, text in zip(kept, weights(serving), strict=True))
    done = serving.run("down", "--purge-weights", "-y", timeout_s=300)
    assert done.status == 0, done.err
    for node in serving.lab.nodes:
        left = serving.on(node, "find /srv/k3ctl/weights -type f").split()
        assert sorted(left) == sorted(foreign)
    serving.everywhere("rm -rf " + " ".join(str(PurePosixPath(file).parent) for file in foreign))


# --- Ctrl-C, on hosts that have neither weights nor the engine's files -----------------------------------------------


def under_way(operator: Operator) -> Running:
    """An `up` that stages and provisions at the same time."""
    operator.faults(SLOW)
    running = operator.start("up")
    running.saw("stage: Stage")
    running.saw("provision: Provision")
    unit = f"k3ctl-{operator.cluster}-stage-*.service"
    wait_until(
        "staging and a play",
        lambda: (
            all(operator.everywhere(f"systemctl is-active '{unit}' | grep -c '^active' || true"))
            and any("provision.yml" in line for line in operator.children())
        ),
        60,
        0.2,
    )
    return running


def twice(running: Running) -> Done:
    """Ctrl-C, and again as soon as the first one was heard."""
    running.signal(signal.SIGINT)
    running.saw("press Ctrl-C again", timeout_s=10)
    began = time.monotonic()
    running.signal(signal.SIGINT)
    done = running.done(30)
    assert time.monotonic() - began < AT_ONCE_S
    return done


def test_ctrl_c_in_provision_and_stage(serving: Operator) -> None:
    running = under_way(serving)
    running.signal(signal.SIGINT)
    done = running.done(60)
    assert done.status == INTERRUPTED, done.err
    assert "stopping: no new work is started; press Ctrl-C again to leave at once" in done.err
    serving.alone()
    unit = f"k3ctl-{serving.cluster}-stage-*.service"
    assert f"stage {', '.join(serving.lab.nodes)}: {unit} goes on by itself" in done.err
    assert "provisioning was stopped" in done.err
    for node in serving.lab.nodes:
        assert serving.on(node, f"systemctl is-active '{unit}' | grep -c '^active' || true").strip() != "0"
    assert "burn-in: Burn-in" not in done.err
    for node in serving.lab.nodes:  # the command that it names is the right one
        fix = next(line for line in done.err.splitlines() if "to end it: systemctl stop" in line)
        serving.on(node, fix.split("to end it: ")[1])
        assert serving.on(node, f"systemctl list-units --plain --no-legend '{unit}'") == ""
    kept = ".k3stage/"  # what was fetched so far, for the next run
    wait_until("no process is left", lambda: [line for line in serving.left() if kept not in line] == [], 30)


def test_ctrl_c_twice_in_provision_and_stage_and_down_ends_what_went_on(serving: Operator) -> None:
    done = twice(under_way(serving))
    assert done.status == INTERRUPTED, done.err
    serving.alone()
    down = serving.run("down", "--purge-weights", "-y", "-o", "json", timeout_s=300)
    assert down.status == 0, down.err
    changes = [change["text"] for change in down.json["phases"]["remove"]["changes"]]
    assert any(change.startswith(f"stop unit k3ctl-{serving.cluster}-stage-") for change in changes)
    assert serving.left() == []
    assert serving.everywhere("find /srv/k3ctl/weights -type f") == [""] * len(serving.lab.nodes)
    serving.faults()


def launching(operator: Operator) -> Running:
    running = operator.start("up")
    running.saw("launch: Launch", timeout_s=600)
    wait_until("the play", lambda: any("serve.yml" in line for line in operator.children()), 60, 0.1)
    return running


def test_ctrl_c_in_launch(serving: Operator) -> None:
    running = launching(serving)
    running.signal(signal.SIGINT)
    done = running.done(60)
    assert done.status == INTERRUPTED, done.err
    assert "launch: " in done.err
    assert "run k3ctl up again" in done.err
    serving.alone()
    assert_gone(serving)


def test_ctrl_c_twice_in_launch(serving: Operator) -> None:
    serving.everywhere(f"rm -rf /etc/k3ctl/{serving.cluster}")  # so that there is something to install
    done = twice(launching(serving))
    assert done.status == INTERRUPTED, done.err
    serving.alone()
    assert_gone(serving)


def test_nothing_is_left_in_the_end(serving: Operator) -> None:
    done = serving.run("down", "-y", "--purge-weights", timeout_s=300)
    assert done.status == 0, done.err
    wait_until("nothing is left on the hosts", lambda: serving.left() == [], 30)
    assert [path.name for path in serving.folder.iterdir() if path.name.startswith("play-")] == []
