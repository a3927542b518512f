"""Launch texts of a container plan: what docker is told, what the unit adds, where the key goes."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from k3ctl.errors import ConfigError
from k3ctl.launch.render import NodeLaunch, render
from k3ctl.node import gang, launchfile
from k3ctl.node.rank import hand_over_key
from k3ctl.plan import Plan
from k3ctl.secret import Secret
from tests.unit.plan_fixtures import plan

KEY = Secret("k3-key-of-the-test")


def launched(made: Plan) -> tuple[NodeLaunch, ...]:
    agents = {node.name: "/opt/k3ctl/node/k3node-0123456789ab.pyz" for node in made.nodes}
    return render(made, agents, {node.name: "/usr/bin/python3" for node in made.nodes}, KEY).nodes


def launch(made: Plan, rank: int = 0) -> dict[str, Any]:
    return dict(json.loads(launched(made)[rank].launch_text))


def pairs(argv: list[str], option: str) -> list[str]:
    return [argv[i + 1] for i, word in enumerate(argv) if word == option]


def test_docker_runs_torchrun_in_the_pinned_image() -> None:
    made = plan()
    argv = launch(made)["torchrun_argv"]
    assert argv[:4] == ["/usr/bin/docker", "run", "--rm", "--init"]
    assert pairs(argv, "--entrypoint") == ["torchrun"]
    image = argv.index(made.runtime.url)
    assert "@sha256:c2914767" in argv[image]
    assert argv[image + 1 : image + 3] == ["--nnodes", "2"]
    assert pairs(argv, "--network") == ["host"]
    assert pairs(argv, "--ipc") == ["host"]
    assert pairs(argv, "--pull") == ["never"]
    assert "memlock=-1:-1" in pairs(argv, "--ulimit")
    assert "/dev/infiniband" in pairs(argv, "--device")


def test_amd_gets_its_own_options() -> None:
    argv = launch(plan("mi355x", 1))["torchrun_argv"]
    assert pairs(argv, "--device") == ["/dev/kfd", "/dev/dri"]
    assert "--gpus" not in argv


def test_weights_are_read_only_and_caches_stay() -> None:
    made = plan("b300", 1, strategy={"draft": "inferact-dspark"})
    volumes = pairs(launch(made)["torchrun_argv"], "--volume")
    assert [volume for volume in volumes if volume.endswith(":ro")] == [
        *(f"{model.path}:{model.path}:ro" for model in made.models),
        f"{made.config_dir}:{made.config_dir}:ro",
    ]
    assert f"{made.state_dir}:{made.state_dir}" in volumes


def test_the_key_is_in_no_text_but_the_environment() -> None:
    head, worker = launched(plan())
    for node in (head, worker):
        assert KEY.reveal() not in node.unit_text + node.launch_text
    assert f"VLLM_API_KEY={KEY.reveal()}" in head.env_text.reveal()
    assert "API_KEY" not in worker.env_text.reveal()


def test_the_gang_starts_the_shim_with_the_images_python() -> None:
    read = launchfile.Launch(launch(plan()))
    assert gang.shim_argv(read)[0] == "python3"
    assert read.engine_argv[:2] == ["vllm", "serve"]
    assert "PATH" not in read.base_env


def test_the_unit_needs_docker_and_leaves_no_container() -> None:
    text = launched(plan())[1].unit_text
    assert "Requires=docker.service" in text
    assert text.count("docker rm --force k3ctl-pod") == 2
    assert "ExecStopPost=-/usr/bin/docker rm --force k3ctl-pod" in text


def test_replicas_are_not_launched_together_but_one_by_one() -> None:
    made = plan(nodes=4, strategy={"replicas": 2})
    with pytest.raises(ConfigError, match="the router before them is not built"):
        launched(made)
    second = launch(made.replica(1), 1)
    assert (second["node"], second["rank"], second["nnodes"]) == ("node4", 1, 2)
    assert "[198.51.100.13]:29400" not in second["torchrun_argv"]
    assert "198.51.100.13:29400" in second["torchrun_argv"]


def test_a_key_file_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "api_key.yml"
    path.write_text("old")
    path.chmod(0o644)
    environment = {"K3CTL_API_KEY": 'a"b', "X": "1"}
    hand_over_key({"path": str(path), "variable": "K3CTL_API_KEY", "key": "api-key"}, environment)
    assert environment == {"X": "1"}
    assert path.read_text() == 'api-key: "a\\"b"\n'
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    hand_over_key({}, environment)
