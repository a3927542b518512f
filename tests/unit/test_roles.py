"""The contract of roles: defaults, argument_specs and what Python emits are one thing."""

from __future__ import annotations

import fcntl
import importlib.util
import multiprocessing
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from k3ctl.edge.ansible_content import PLAYBOOKS, roles_of
from k3ctl.edge.content import content_root
from k3ctl.provision import variables

ROOT = content_root()
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())


def read(role: str, *parts: str) -> Any:
    return yaml.safe_load((ROOT / "roles" / role).joinpath(*parts).read_text())


def options(role: str) -> dict[str, dict[str, Any]]:
    return dict(read(role, "meta", "argument_specs.yml")["argument_specs"]["main"]["options"])


def emitted() -> dict[str, dict[str, Any]]:
    """Playbook -> all variables that Python gives it, from a plan of two nodes."""
    paths = SimpleNamespace(weights="/w", runtimes="/r", state="/s", logs="/l")
    cluster: Any = SimpleNamespace(name="c", spec=SimpleNamespace(paths=paths))
    plan: Any = SimpleNamespace(
        nodes=[SimpleNamespace(name="a", address="10.0.0.1"), SimpleNamespace(name="b", address="fd00::2")],
        expected=SimpleNamespace(memlock=True),
        ports=[SimpleNamespace(port=8000), SimpleNamespace(port=29400), SimpleNamespace(port=8000)],
    )
    return {
        "provision": {
            **variables.node_variables(cluster, plan),
            **variables.stamp_variables(cluster, "{}"),
        },
        "down": variables.down_variables(cluster),
    }


def test_there_are_roles() -> None:
    assert {"base", "serving_user", "engine", "provision_stamp"} <= set(ROLES)


@pytest.mark.parametrize("role", ROLES)
def test_defaults_are_the_options_with_their_defaults(role: str) -> None:
    defaults = read(role, "defaults", "main.yml")
    specs = options(role)
    required = {name for name, spec in specs.items() if spec.get("required")}
    assert set(defaults) == set(specs) - required
    assert {name: spec["default"] for name, spec in specs.items() if name not in required} == defaults
    for name, spec in specs.items():
        assert not (spec.get("required") and "default" in spec), f"{name} is required and has a default"
        assert spec["description"]


@pytest.mark.parametrize("role", ROLES)
def test_public_names_start_with_the_role(role: str) -> None:
    assert all(name.startswith(f"{role}_") for name in options(role))


@pytest.mark.parametrize("role", ROLES)
def test_private_names_start_with_underscores(role: str) -> None:
    path = ROOT / "roles" / role / "vars" / "main.yml"
    if path.exists():
        assert all(name.startswith(f"__{role}_") for name in yaml.safe_load(path.read_text()))


@pytest.mark.parametrize("role", ROLES)
def test_roles_use_builtin_modules_and_their_own_folder_only(role: str) -> None:
    for path in (ROOT / "roles" / role / "tasks").glob("*.yml"):
        for task in yaml.safe_load(path.read_text()):
            modules = [key for key in task if "." in key]
            assert all(key.startswith("ansible.builtin.") for key in modules), f"{path}: {modules}"


@pytest.mark.parametrize("playbook", sorted(emitted()))
def test_every_emitted_variable_is_declared(playbook: str) -> None:
    declared = {name for role in roles_of(ROOT, playbook) for name in options(role)}
    assert set(emitted()[playbook]) <= declared


@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_every_required_variable_is_emitted(playbook: str) -> None:
    required = {n for role in roles_of(ROOT, playbook) for n, spec in options(role).items() if spec.get("required")}
    assert required <= set(emitted().get(playbook, {}))


@pytest.mark.parametrize("playbook", sorted(emitted()))
def test_emitted_values_have_the_declared_type(playbook: str) -> None:
    types = {"str": str, "path": str, "bool": bool, "int": int, "list": list, "dict": dict}
    specs = {name: spec for role in roles_of(ROOT, playbook) for name, spec in options(role).items()}
    for name, value in emitted()[playbook].items():
        assert type(value) is types[specs[name]["type"]], name
        for item in value if isinstance(value, list) else ():
            assert type(item) is types[specs[name]["elements"]], name


def test_ports_are_emitted_once_and_in_order() -> None:
    assert emitted()["provision"]["base_reserved_ports"] == [8000, 29400]


def test_names_come_with_fabric_addresses() -> None:
    assert emitted()["provision"]["base_hosts"] == [
        {"address": "10.0.0.1", "names": ["a"]},
        {"address": "fd00::2", "names": ["b"]},
    ]


def test_secret_texts_are_marked() -> None:
    assert options("engine")["engine_env_text"]["no_log"] is True
    tasks = [task for name in ("present.yml",) for task in read("engine", "tasks", name)]
    users = [task for task in tasks if "engine_env_text" in str(task)]
    assert users
    assert all(task.get("no_log") is True for task in users)


def probe() -> ModuleType:
    """The role's own script, loaded as a module."""
    path = ROOT / "roles" / "base" / "files" / "probe.py"
    spec = importlib.util.spec_from_file_location("base_probe", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _hold(path: Path, ready: Any, done: Any) -> None:
    with path.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        ready.set()
        done.wait(20)


@pytest.mark.skipif(sys.platform != "linux", reason="the layout of struct flock is Linux's")
def test_probe_names_the_holder_of_a_package_lock(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    lock = tmp_path / "lock-frontend"
    child = context.Process(target=_hold, args=(lock, ready, done))
    child.start()
    try:
        assert ready.wait(20)
        found = probe().holder(str(lock))
        assert found["pid"] == child.pid
        assert found["lock"] == str(lock)
        assert "python" in found["name"]
    finally:
        done.set()
        child.join(20)
    assert probe().holder(str(lock)) is None


def test_probe_of_a_lock_file_that_is_not_there(tmp_path: Path) -> None:
    assert probe().holder(str(tmp_path / "none")) is None


def test_probe_of_a_process_that_is_gone() -> None:
    assert probe().name_of(2**22 + 1) == "?"


def test_probe_keeps_limits_as_they_are() -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert probe().highest(resource.RLIMIT_NOFILE, before[1]) == before[1]
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
