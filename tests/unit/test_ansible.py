"""Ansible's edge: what it refuses before anything runs, its content, its private folders."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from k3ctl.edge.ansible import AnsibleRunner
from k3ctl.edge.ansible_content import PLAYBOOKS, content_digest, playbook_file, roles_of, task_count
from k3ctl.edge.ansible_scratch import end_processes, open_scratch
from k3ctl.edge.content import content_root
from k3ctl.errors import ConfigError
from k3ctl.inventory import Inventory, Node, SshTarget

ROOT = content_root()


def runner(tmp_path: Path, *names: str) -> AnsibleRunner:
    nodes = tuple(Node(name, rank, SshTarget("192.0.2.1"), "10.1.0.1") for rank, name in enumerate(names))
    cluster: Any = SimpleNamespace(inventory=Inventory("c", "/c", nodes))
    return AnsibleRunner(cluster, tmp_path / "known_hosts", tmp_path / "scratch", {"HF_TOKEN": "leak", "HOME": "/h"})


def refuse(tmp_path: Path, playbook: str, nodes: tuple[str, ...], variables: dict[str, dict[str, Any]]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        runner(tmp_path, "a", "b").run(
            playbook, nodes, variables, check=False, stop=threading.Event(), on_event=lambda _event: None
        )
    assert not (tmp_path / "scratch").exists(), "nothing was to be started"
    return caught.value


def test_unknown_playbook(tmp_path: Path) -> None:
    error = refuse(tmp_path, "provison", ("a",), {})
    assert "provision" in error.problems[0].expected


def test_no_hosts(tmp_path: Path) -> None:
    assert "no hosts" in str(refuse(tmp_path, "provision", (), {}))


def test_host_that_is_not_in_the_inventory(tmp_path: Path) -> None:
    assert "'c'" in str(refuse(tmp_path, "provision", ("a", "c"), {}))


def test_variables_of_a_host_that_is_not_in_the_inventory(tmp_path: Path) -> None:
    assert "'z'" in str(refuse(tmp_path, "provision", ("a",), {"z": {}}))


def test_play_gets_a_clean_environment(tmp_path: Path) -> None:
    with open_scratch(tmp_path / "s") as scratch:
        environment = runner(tmp_path, "a")._environment(scratch)
    assert "HF_TOKEN" not in environment
    assert environment["HOME"] == "/h"
    assert environment["ANSIBLE_HOST_KEY_CHECKING"] == "True"


@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_every_playbook_exists_and_names_existing_roles(playbook: str) -> None:
    assert playbook_file(ROOT, playbook).is_file()
    assert roles_of(ROOT, playbook)
    for role in roles_of(ROOT, playbook):
        assert (ROOT / "roles" / role / "tasks" / "main.yml").is_file()


def test_every_playbook_file_has_a_name() -> None:
    assert {path.stem for path in (ROOT / "playbooks").glob("*.yml")} == set(PLAYBOOKS)


def test_task_count_is_counted_through_imports() -> None:
    # facts, argument validation and 9 tasks: one assertion, four to install, four to remove
    assert task_count(ROOT, "serve") == 10 - 1
    assert task_count(ROOT, "provision") > 30


def copy_of_content(tmp_path: Path) -> Path:
    for folder in ("playbooks", "roles"):
        subprocess.run(("cp", "-r", str(ROOT / folder), str(tmp_path)), check=True, timeout=10)
    return tmp_path


def test_digest_follows_the_content_of_named_roles_only(tmp_path: Path) -> None:
    root = copy_of_content(tmp_path)
    before = content_digest(root, "provision")
    (root / "roles" / "engine" / "tasks" / "main.yml").write_text("---\n[]\n")
    assert content_digest(root, "provision") == before
    (root / "roles" / "base" / "templates" / "hosts.j2").write_text("other\n")
    assert content_digest(root, "provision") != before


def test_digest_sees_new_files(tmp_path: Path) -> None:
    root = copy_of_content(tmp_path)
    before = content_digest(root, "serve")
    (root / "roles" / "engine" / "templates").mkdir(exist_ok=True)
    (root / "roles" / "engine" / "templates" / "new.j2").write_text("")
    assert content_digest(root, "serve") != before


def test_private_folder_is_private_and_gone_afterwards(tmp_path: Path) -> None:
    with open_scratch(tmp_path / "s") as scratch:
        file = scratch.write("inventory/20-secrets.yml", "geheim")
        assert file.stat().st_mode & 0o777 == 0o600
        assert scratch.path.stat().st_mode & 0o777 == 0o700
        assert scratch.control.stat().st_mode & 0o777 == 0o700
        # 10 characters of a name that Ansible makes, 17 that ssh adds; the limit of a socket's path is 104 (macOS)
        assert len(str(scratch.control)) + 1 + 10 + 17 < 104
    assert not scratch.path.exists()
    assert not scratch.control.exists()


def test_private_folder_is_gone_after_an_error(tmp_path: Path) -> None:
    made: list[Path] = []

    def fail() -> None:
        with open_scratch(tmp_path / "s") as scratch:
            made.append(scratch.write("x", "geheim"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not made[0].parent.exists()


def test_processes_that_name_the_folder_end_with_it(tmp_path: Path) -> None:
    script = "import time; print('x', flush=True); time.sleep(60)"
    with open_scratch(tmp_path / "s") as scratch:
        argv = (sys.executable, "-c", script, str(scratch.path))
        child = subprocess.Popen(argv, start_new_session=True, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.read(1)
        reaper = threading.Thread(target=child.wait)
        reaper.start()
    reaper.join(timeout=5)
    child.stdout.close()
    assert child.returncode == -15


def test_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    tag = f"k3ctl-test-{time.monotonic_ns()}"
    script = "import signal, sys, time; signal.signal(15, signal.SIG_IGN); print('x', flush=True); time.sleep(60)"
    with subprocess.Popen((sys.executable, "-c", script, tag), stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.read(1)
        reaper = threading.Thread(target=child.wait)
        reaper.start()
        end_processes(tag)
        reaper.join(timeout=5)
        assert child.returncode == -9


def test_leftover_of_a_killed_run_is_cleaned_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    root = tmp_path / "s"
    dead, control = root / "play-dead", tmp_path / "k3c-dead"
    control.mkdir()
    dead.mkdir(parents=True)
    (dead / "control").symlink_to(control)
    (dead / "owner.lock").touch()
    half = root / "play-half"
    half.mkdir()
    alive = root / "play-alive"
    alive.mkdir()
    (alive / "control").symlink_to(control)
    with (alive / "owner.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with open_scratch(root):
            assert not dead.exists()
            assert not control.exists()
            assert not half.exists()
            assert alive.exists()
