"""The launch texts, held against golden files; K3CTL_GOLDEN=write in the environment renews these."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from k3ctl.errors import ConfigError, InternalError
from k3ctl.launch import ask, unit
from k3ctl.launch.compare import difference, needs_restart, runs
from k3ctl.launch.engines import traits_of
from k3ctl.launch.render import listening_ports
from k3ctl.node import launchfile, status
from k3ctl.secret import Secret
from tests.unit.launch_fixtures import KEY, make_plan, rendered

GOLDEN = Path(__file__).parents[1] / "data/launch"
CASES = {
    "one": make_plan(1),
    "two": make_plan(2),
    "four": make_plan(4),
    "two-rdma-ipv6": make_plan(2, cluster="h200x16", memlock=True, ipv6=True),
}


@pytest.mark.parametrize("case", CASES)
def test_texts_are_the_golden_ones(case: str) -> None:
    launch = rendered(CASES[case])
    for node in launch.nodes:
        for kind, text in (("service", node.unit_text), ("json", node.launch_text), ("env", node.env_text.reveal())):
            path = GOLDEN / case / f"rank{node.rank}.{kind}"
            if os.environ.get("K3CTL_GOLDEN") == "write":
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            assert text == path.read_text(), path


@pytest.mark.parametrize("case", CASES)
def test_the_node_reads_what_was_rendered(case: str) -> None:
    for node in rendered(CASES[case]).nodes:
        read = launchfile.Launch(json.loads(node.launch_text))
        assert (read.rank, read.cluster, len(read.launch_id)) == (node.rank, CASES[case].cluster, 64)
        assert read.gang_grace_s < unit.STOP_TIMEOUT_S
        assert read.drop_env_prefixes == ["TORCHELASTIC_"]
        assert {"RANK", "WORLD_SIZE", "MASTER_ADDR", "https_proxy", "RAY_ADDRESS"} <= set(read.drop_env)


def test_both_sides_mean_the_same_numbers() -> None:
    assert unit.CRASH_LOOP_STATUS == launchfile.CRASH_LOOP_STATUS
    assert json.loads(rendered(CASES["one"]).nodes[0].launch_text)["schema"] == launchfile.SCHEMA


def test_only_the_head_gets_the_key_and_no_text_but_the_environment_holds_it() -> None:
    head, worker = rendered(CASES["two"]).nodes
    assert KEY.reveal() in head.env_text.reveal()
    assert "VLLM_API_KEY" not in worker.env_text.reveal()
    for node in (head, worker):
        assert KEY.reveal() not in node.unit_text + node.launch_text
    assert repr(head.env_text) == "***"


def test_the_id_follows_what_runs_and_not_the_agent() -> None:
    plan = CASES["two"]
    same = rendered(plan, "/opt/k3ctl/node/k3node-ffffffffffff.pyz")
    assert rendered(plan).id == same.id
    assert rendered(plan).nodes[0].unit_text != same.nodes[0].unit_text
    other = replace(plan, nodes=(plan.nodes[0], replace(plan.nodes[1], engine_env={"HF_HUB_OFFLINE": "0"})))
    assert rendered(other).id != rendered(plan).id
    assert rendered(replace(plan, rendezvous_port=29401)).id != rendered(plan).id


def test_the_window_of_a_crash_loop_follows_the_load() -> None:
    slow = replace(CASES["two"], timeouts=replace(CASES["two"].timeouts, engine_ready=5400.0))
    crash = json.loads(rendered(slow).nodes[0].launch_text)["crash"]
    assert crash == {"limit": 4, "window_s": 21600.0, "healthy_after_s": 5400.0}


def test_ports_by_rank() -> None:
    assert listening_ports(CASES["two"], 0) == (8000, 29400, 29501)
    assert listening_ports(CASES["two"], 1) == ()
    assert listening_ports(CASES["one"], 0) == (8000, 29400)


def test_a_program_without_a_path_is_the_runtimes_own() -> None:
    plan = CASES["one"]
    bare = replace(plan, nodes=(replace(plan.nodes[0], engine_argv=("vllm", "serve")),))
    assert json.loads(rendered(bare).nodes[0].launch_text)["engine_argv"][0] == f"{plan.runtime.bin}/vllm"


def test_refusals() -> None:
    plan = CASES["one"]
    with pytest.raises(ConfigError, match="cannot be launched yet"):
        traits_of("llamacpp")
    with pytest.raises(InternalError, match="no launcher ray"):
        rendered(replace(plan, launcher="ray"))
    odd = replace(plan.nodes[0], engine_env={"A": "1\n2"})
    with pytest.raises(InternalError, match="one line"):
        rendered(replace(plan, nodes=(odd,)))


def reply(node: object, plan_name: str = "k3lab1", **gang: object) -> dict[str, object]:
    """A status reply of a node on which exactly these texts are installed."""
    import hashlib

    launch = node
    texts = {"unit": launch.unit_text, "launch": launch.launch_text, "env": launch.env_text.reveal()}  # type: ignore[attr-defined]
    digests = {key: hashlib.sha256(text.encode()).hexdigest() for key, text in texts.items()}
    return {"files": digests, "texts": {"unit": texts["unit"], "launch": texts["launch"]}, "gang": gang or None}


def test_equal_texts_are_no_difference() -> None:
    node = rendered(CASES["two"]).nodes[0]
    found = difference(node, reply(node))
    assert (found.files, found.diff) == ((), "")


def test_a_bare_host_lacks_all_three() -> None:
    node = rendered(CASES["two"]).nodes[0]
    found = difference(node, {"files": {"unit": None, "launch": None, "env": None}, "texts": {}})
    assert len(found.files) == 3
    assert "+ExecStart=/usr/bin/python3" in found.diff
    assert KEY.reveal() not in found.diff
    assert "secret, not shown" in found.diff


def test_the_diff_shows_what_changes() -> None:
    plan = CASES["two"]
    old = rendered(plan).nodes[1]
    new = rendered(replace(plan, master_port=29502, nodes=plan.nodes)).nodes[1]
    assert difference(new, reply(old)).files == ()  # the master port is in argv only, and argv is the plan's
    newer = rendered(plan, "/opt/k3ctl/node/k3node-ffffffffffff.pyz").nodes[1]
    found = difference(newer, reply(old))
    assert found.files == ("k3ctl-lab.service",)
    assert "k3node-ffffffffffff" in found.diff


def test_restart_only_for_another_launch() -> None:
    assert not needs_restart("a", {"gang": {"launch_id": "a"}})
    assert needs_restart("a", {"gang": {"launch_id": "b"}})
    assert needs_restart("a", {"gang": None})
    assert [runs({"unit": {"active": s}}) for s in ("active", "activating", "inactive", "failed", "deactivating")] == [
        True, True, False, False, False,
    ]  # fmt: skip


def test_payloads_name_what_the_verbs_need() -> None:
    plan = CASES["two"]
    assert ask.status(plan, "k3lab2")["ports"] == []
    assert ask.start(plan, "k3lab1")["ports"] == [8000, 29400, 29501]
    assert ask.stop(plan, "k3lab1")["timeout_s"] > unit.STOP_TIMEOUT_S
    assert ask.logs(plan, "k3lab2", tail=5, follow=False, previous=True)["rank"] == 1
    paths = status._paths(ask.status(plan, "k3lab1"))
    node = rendered(plan).nodes[0]
    assert paths == {
        "unit": f"/etc/systemd/system/{node.unit}",
        "launch": f"{node.config_dir}/launch.json",
        "env": f"{node.config_dir}/engine.env",
    }
    with pytest.raises(KeyError):
        ask.status(plan, "k3lab9")


def test_environment_file_is_read_back_as_written(tmp_path: Path) -> None:
    plan = CASES["one"]
    odd = replace(plan.nodes[0], engine_env={"A": "x=1 #2 'q' \"d\" $HOME", "EMPTY": ""})
    text = rendered(replace(plan, nodes=(odd,))).nodes[0].env_text
    assert isinstance(text, Secret)
    path = tmp_path / "engine.env"
    path.write_text(text.reveal())
    assert launchfile.read_env_file(str(path)) == {
        "A": "x=1 #2 'q' \"d\" $HOME", "EMPTY": "", "VLLM_API_KEY": KEY.reveal(),
    }  # fmt: skip
    path.write_text("no sign\n")
    with pytest.raises(ValueError, match=r"engine\.env:1 is not KEY=VALUE"):
        launchfile.read_env_file(str(path))


def test_a_launch_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "launch.json"
    path.write_text(json.dumps({"schema": 99}))
    with pytest.raises(ValueError, match="schema 99"):
        launchfile.load(str(path))
    path.write_text(json.dumps({"schema": 1}))
    with pytest.raises(ValueError, match="lacks 'cluster'"):
        launchfile.load(str(path))
