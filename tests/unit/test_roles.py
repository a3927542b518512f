"""The contract of roles: defaults, argument_specs and what Python emits are one thing."""

from __future__ import annotations

import ast
import fcntl
import importlib.util
import json
import multiprocessing
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jinja2
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


def written_in(folder: str) -> dict[str, set[str]]:
    """Role -> variable names that stand as keys of dictionaries in the sources below k3ctl/<folder>."""
    found: dict[str, set[str]] = {role: set() for role in ROLES}
    for path in (ROOT / "k3ctl" / folder).rglob("*.py"):
        for tree in ast.walk(ast.parse(path.read_text())):
            keys = (
                [key.value for key in tree.keys if isinstance(key, ast.Constant)] if isinstance(tree, ast.Dict) else []
            )
            for role in ROLES:
                found[role] |= {key for key in keys if isinstance(key, str) and key.startswith(f"{role}_")}
    return found


@pytest.mark.skipif(not (ROOT / "k3ctl").is_dir(), reason="needs the sources")
def test_no_other_source_emits_what_no_role_declares() -> None:
    names: set[str] = set()
    for folder in ("phases", "provision"):
        for role, keys in written_in(folder).items():
            assert keys <= set(options(role)), f"k3ctl/{folder} emits what role {role} does not declare"
            names |= keys
    assert {"engine_unit_text", "engine_env_text", "base_hosts"} <= names, "the search found nothing to judge"


def rendered(template: str, **values: Any) -> list[str]:
    """Lines of a template of role `base`, without comments, as Ansible would render it."""
    environment = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined, autoescape=False)  # noqa: S701
    environment.filters["from_json"] = json.loads
    environment.filters["combine"] = lambda first, second: {**first, **second}
    environment.tests["match"] = lambda text, pattern: re.match(pattern, text) is not None
    source = (ROOT / "roles" / "base" / "templates" / template).read_text()
    seen = {"nofile": 1048576, "memlock": True, "container": False, **values.pop("probe", {})}
    everything = {
        **read("base", "defaults", "main.yml"),
        **read("base", "vars", "main.yml"),
        "__base_probe": {"stdout": json.dumps(seen)},
        **values,
    }
    text = environment.from_string(source).render(everything)
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_limits_of_a_real_server() -> None:
    assert rendered("limits.conf.j2") == [
        f"{who} {rest}"
        for who in ("*", "root")
        for rest in ("- memlock unlimited", "soft nofile 65536", "hard nofile 1048576")
    ]
    assert rendered("system.conf.j2") == [
        "[Manager]",
        "DefaultLimitMEMLOCK=infinity",
        "DefaultLimitNOFILE=65536:1048576",
    ]


def test_limits_that_cannot_be_raised_stay_out_since_pam_would_refuse_logins() -> None:
    small = {"base_memlock_unlimited": False, "probe": {"nofile": 20000, "memlock": False}}
    assert rendered("limits.conf.j2", **dict(small)) == ["* soft nofile 20000", "root soft nofile 20000"]
    assert rendered("system.conf.j2", **dict(small)) == ["[Manager]", "DefaultLimitNOFILE=20000:20000"]


def test_kernel_values_of_a_server_and_of_a_container() -> None:
    server = rendered("sysctl.conf.j2", base_reserved_ports=[29400, 8000], base_extra_sysctl={"vm.swappiness": 1})
    assert "-vm.swappiness = 1" in server
    assert "-net.core.rmem_max = 67108864" in server
    assert server[-1] == "-net.ipv4.ip_local_reserved_ports = 8000,29400"
    container = rendered("sysctl.conf.j2", base_reserved_ports=[8000], probe={"container": True})
    assert container
    assert all(line.startswith("-net.ipv4.") for line in container)


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("127.0.1.1 gpu1", "127.0.1.1"),
        ("127.0.1.1\tgpu1.example.org gpu1", "127.0.1.1"),
        ("127.0.0.1 localhost gpu1", "127.0.0.1 localhost"),
        ("127.0.1.1 gpu1 # by the installer", "127.0.1.1 # by the installer"),
        ("::1 localhost gpu1 ip6-localhost", "::1 localhost ip6-localhost"),
        ("127.0.1.1 gpu10 gpu1-ib", None),
        ("127.0.0.1 localhost # gpu1", None),
        ("# 127.0.1.1 gpu1", None),
        ("10.0.0.1 gpu1", None),
    ],
)
def test_own_names_leave_loopback_lines_and_only_those(line: str, kept: str | None) -> None:
    names = ["gpu1.example.org", "gpu1"]
    values = read("base", "vars", "main.yml")
    keep, take = (task["ansible.builtin.replace"] for task in read("base", "tasks", "hosts.yml")[:2])
    alternatives = f"(?:{'|'.join(map(re.escape, names))})"
    mark = keep["regexp"].replace("{{ __base_loopback_names }}", values["__base_loopback_names"])
    mark = mark.replace("{{ __base_own_names_regexp }}", alternatives)
    text = f"127.0.0.1 first\n{line}\n"
    assert bool(re.search(mark, text, re.MULTILINE)) is (kept is not None)
    for name in names:
        pattern = take["regexp"].replace("{{ __base_loopback_names }}", values["__base_loopback_names"])
        pattern = pattern.replace("{{ item | regex_escape }}", re.escape(name))
        text = re.sub(pattern, take["replace"], text, flags=re.MULTILINE)
    assert text == f"127.0.0.1 first\n{line if kept is None else kept}\n"


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
