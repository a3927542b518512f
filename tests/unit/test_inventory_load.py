"""What the case folders cannot hold: paths, links, modes, vaults, the caller's environment, and the real process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible.parsing.vault import VaultLib, VaultSecret

from k3ctl.cluster import Cluster, origins
from k3ctl.edge.ansible_dump import dump
from k3ctl.edge.ansible_inventory import load_cluster
from k3ctl.errors import ConfigError, Problem
from k3ctl.phases.validate import validate
from k3ctl.secret import Secret
from tests.unit.inventory_cases import build

REPO = Path(__file__).parents[2]
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nnot a real one\n"


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return build("base", tmp_path)


def load(path: Path | str) -> Cluster:
    return load_cluster(str(path), dump=dump)


def problems(path: Path | str) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        load(path)
    return caught.value.problems


def only(path: Path | str) -> Problem:
    found = problems(path)
    assert len(found) == 1, found
    return found[0]


def add(folder: Path, name: str, text: str, mode: int = 0o644) -> Path:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    with file.open("a") as stream:
        stream.write(text)
    file.chmod(mode)
    return file


# paths


def test_missing_path_names_what_is_there(good: Path) -> None:
    problem = only(good.parent / "clutser")
    assert problem.what == "there is no inventory at this path"
    assert "cluster" in problem.found


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 5000, "/dev/null", "nope/deeper/still"])
def test_odd_paths_are_config_errors(path: str) -> None:
    only(path)


def test_folder_of_inventories_is_refused_by_name() -> None:
    problem = only(REPO / "inventories")
    assert problem.what == "this folder holds inventories and is none"
    assert "inventories/b200x16" in problem.fix


def test_other_folders_are_refused_before_all_is_read(tmp_path: Path) -> None:
    assert "inventories/b200x16" in only(REPO).fix
    assert only(tmp_path).what == "there is no inventory in this folder: 0 hosts"
    assert only("/").what


def test_names_that_cannot_be_shown(good: Path) -> None:
    (good / os.fsdecode(b"h\xff")).touch()
    problem = only(good)
    assert problem.found == r"'h\udcff'"
    problem.what.encode()


def test_too_many_files(good: Path) -> None:
    for number in range(501):
        (good / "host_vars").mkdir(exist_ok=True)
        (good / "host_vars" / f".{number}").touch()
    assert "too much" in only(good).what


def test_a_file_of_the_folder_may_be_named(good: Path) -> None:
    add(good, "other.yml", "gpu_nodes: [not, read]\n")
    cluster = load(good / "hosts.yml")
    assert [node.name for node in cluster.inventory.nodes] == ["node1", "node2"]
    assert cluster.inventory.head.ssh.user == "ops", "group_vars beside the file count"
    assert cluster.name == "cluster"


def test_cluster_yml_is_not_the_inventory(good: Path) -> None:
    assert only(good / "cluster.yml").what == "this is cluster.yml, not the inventory"


def test_a_link_gives_the_cluster_the_real_name(good: Path, tmp_path: Path) -> None:
    link = tmp_path / "Current Link"
    link.symlink_to(good)
    assert load(link).name == "cluster"


def test_a_link_to_nothing(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "gone")
    assert only(link).what == "the inventory is a link to nothing"


def test_links_in_a_circle_end(good: Path) -> None:
    (good / "again").symlink_to(good)
    assert problems(good)


def test_a_socket_is_no_inventory_file(good: Path) -> None:
    here = Path.cwd()
    os.chdir(good)  # socket paths are short
    try:
        with socket.socket(socket.AF_UNIX) as unix:
            unix.bind("hosts.sock")
    finally:
        os.chdir(here)
    assert only(good).what == "this is no regular file"


def test_too_large_a_file(good: Path) -> None:
    add(good, "group_vars/all.yml", "# " + "x" * 600_000 + "\n")
    assert only(good).what == "the file is too large"


def test_problems_name_files_as_the_user_did(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(good, "cluster.yml", "lancher: torchrun\n")
    monkeypatch.chdir(good.parent)
    assert only("cluster/").file == "cluster/cluster.yml"


# key files


@pytest.mark.parametrize(
    ("text", "mode", "what"),
    [
        (None, 0, "the key file does not exist"),
        (KEY, 0o644, "others can read the key file, and ssh refuses it"),
        (KEY, 0o640, "others can read the key file, and ssh refuses it"),
        ("ssh-ed25519 AAAA\n", 0o600, "the key file holds a public key"),
        ("hello\n", 0o600, "the key file holds no private key"),
    ],
)
def test_key_files_are_judged_here(good: Path, tmp_path: Path, text: str | None, mode: int, what: str) -> None:
    key = tmp_path / "id"
    if text is not None:
        add(tmp_path, "id", text, mode)
    file = add(good, "group_vars/all.yml", f"ansible_ssh_private_key_file: {key}\n")
    found = problems(good)
    assert [(p.what, p.node, p.file, p.line) for p in found] == [(what, n, str(file), 2) for n in ("node1", "node2")]
    assert str(key) in found[0].found


def test_a_folder_is_no_key_file(good: Path, tmp_path: Path) -> None:
    add(good, "group_vars/all.yml", f"ansible_ssh_private_key_file: {tmp_path}\n")
    assert {p.what for p in problems(good)} == {"the key file is no file"}


def test_good_key_file_and_home(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(tmp_path, "id", KEY, 0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    add(good, "group_vars/all.yml", "ansible_ssh_private_key_file: ~/id\n")
    assert load(good).inventory.head.ssh.key_file == str(tmp_path / "id")


def test_key_files_can_be_left_for_later(good: Path) -> None:
    add(good, "group_vars/all.yml", "ansible_ssh_private_key_file: /not/yet\n")
    cluster = load_cluster(str(good), check_keys=False, dump=dump)
    assert cluster.inventory.head.ssh.key_file == "/not/yet"


def test_a_relative_key_file_would_depend_on_the_caller(good: Path) -> None:
    add(good, "group_vars/all.yml", "ansible_ssh_private_key_file: keys/id\n")
    assert {p.what for p in problems(good)} == {"the key file's path is relative"}


def test_key_file_beside_the_inventory(good: Path) -> None:
    add(good, "keys.txt", KEY, 0o600)
    add(good, "group_vars/all.yml", 'ansible_ssh_private_key_file: "{{ inventory_dir }}/keys.txt"\n')
    assert load(good).inventory.head.ssh.key_file == str(good / "keys.txt")


# secrets


def encrypted(text: str, word: str = "open", vault_id: str = "default") -> str:
    vault = VaultLib([(vault_id, VaultSecret(word.encode()))])
    return str(vault.encrypt(text, vault_id=vault_id if vault_id != "default" else None).decode())


@pytest.fixture
def vaulted(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """group_vars/all.yml names a password that stands in a whole-file vault; its password is in `right`."""
    monkeypatch.delenv("ANSIBLE_VAULT_PASSWORD_FILE", raising=False)
    monkeypatch.delenv("ANSIBLE_VAULT_IDENTITY_LIST", raising=False)
    text = (good / "group_vars" / "all.yml").read_text()
    (good / "group_vars" / "all.yml").unlink()
    add(good, "group_vars/all/main.yml", text + 'ansible_become_password: "{{ sudo_word }}"\n')
    add(good, "group_vars/all/vault.yml", encrypted("sudo_word: hunter2\nother: x\n"))
    add(tmp_path, "right", "open\n", 0o600)
    add(tmp_path, "wrong", "shut\n", 0o600)
    return good


def test_vault_with_its_password(vaulted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(tmp_path / "right"))
    cluster = load(vaulted)
    assert cluster.inventory.head.ssh.become_password == Secret("hunter2")
    assert cluster.inventory.head.variables["sudo_word"] == Secret("hunter2")
    assert "hunter2" not in repr(cluster)


@pytest.mark.parametrize(
    ("password", "what"),
    [
        ("", "the file is encrypted and no vault password is given"),
        ("wrong", "the vault password does not open this file"),
        ("gone", "the vault password cannot be read"),
    ],
)
def test_vault_without_its_password(
    vaulted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, password: str, what: str
) -> None:
    if password:
        monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(tmp_path / password))
    problem = only(vaulted)
    assert problem.what == what
    assert problem.file == (str(tmp_path / "gone") if password == "gone" else str(vaulted / "group_vars/all/vault.yml"))


def test_two_vault_ids(vaulted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(vaulted, "host_vars/node2.yml", encrypted("ansible_port: 2222\n", "second", "lab"))
    add(tmp_path, "second", "second\n", 0o600)
    right = f"default@{tmp_path / 'right'}"
    monkeypatch.setenv("ANSIBLE_VAULT_IDENTITY_LIST", right)
    assert only(vaulted).file == str(vaulted / "host_vars/node2.yml")
    monkeypatch.setenv("ANSIBLE_VAULT_IDENTITY_LIST", f"{right},lab@{tmp_path / 'second'}")
    assert load(vaulted).inventory.node("node2").ssh.port == 2222


def test_a_vault_password_prompt_is_refused(vaulted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSIBLE_VAULT_IDENTITY_LIST", "lab@prompt")
    assert "does not ask" in only(vaulted).what


def inline(name: str, text: str) -> str:
    lines = encrypted(text).splitlines()
    return f"{name}: !vault |\n" + "".join(f"  {line}\n" for line in lines)


def test_an_inline_vault_that_is_needed(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANSIBLE_VAULT_PASSWORD_FILE", raising=False)
    add(good, "group_vars/all.yml", inline("ansible_become_password", "hunter2"))
    found = problems(good)
    assert {p.node for p in found} == {"node1", "node2"}
    assert "its vault cannot be opened" in found[0].what
    add(tmp_path, "right", "open", 0o600)
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(tmp_path / "right"))
    assert load(good).inventory.head.ssh.become_password == Secret("hunter2")


def test_an_inline_vault_that_is_not_needed_stays_shut(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANSIBLE_VAULT_PASSWORD_FILE", raising=False)
    add(good, "group_vars/all.yml", inline("grafana_word", "hunter2"))
    assert "grafana_word" not in load(good).inventory.head.variables


def test_unknown_variables_in_a_vault_are_found(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(tmp_path, "right", "open", 0o600)
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(tmp_path / "right"))
    add(good, "host_vars/node1.yml", encrypted("k3ctl_fabric_adress: 1\nansible_password: hunter2\n"))
    found = problems(good)
    assert {p.key for p in found} == {"k3ctl_fabric_adress", "ansible_password"}
    assert "hunter2" not in str(found)


def test_a_password_in_a_private_file_is_accepted(good: Path) -> None:
    add(good, "host_vars/node1.yml", "ansible_become_password: hunter2\n", 0o600)
    cluster = load(good)
    assert cluster.inventory.head.ssh.become_password == Secret("hunter2")
    assert "hunter2" not in repr(cluster)


# the real process


def test_the_callers_ansible_settings_change_nothing(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = "[defaults]\nremote_user=other\ninventory=/nowhere\n[inventory]\nenable_plugins=host_list\n"
    add(tmp_path, "ansible.cfg", config)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANSIBLE_CONFIG", str(tmp_path / "ansible.cfg"))
    monkeypatch.setenv("ANSIBLE_INVENTORY_ENABLED", "host_list")
    monkeypatch.setenv("ANSIBLE_PRECEDENCE", "all_inventory")
    monkeypatch.setenv("LC_ALL", "C")
    cluster = load_cluster(str(good))
    assert cluster == load(good)


def test_the_real_process_prints_nothing_and_is_fast(good: Path) -> None:
    add(good, "hosts.yml", "    odd-group:\n      hosts:\n        workers:\n")  # two warnings of Ansible
    code = f"from k3ctl.edge.ansible_inventory import load_cluster; load_cluster({str(good)!r})"
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert time.monotonic() - started < 10, "0.6 s on a quiet machine"


def test_a_lookup_that_fails_is_a_problem(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(good, "group_vars/all.yml", "ansible_port: \"{{ lookup('pipe', 'exit 3') }}\"\n")
    found = problems(good)
    assert all("`ansible_port` has no value" in p.what for p in found)


# the phase


def test_validate_says_one_line() -> None:
    def quick(path: str) -> Cluster:
        return load_cluster(path, check_keys=False, dump=dump)

    lab, said = validate(str(REPO / "inventories" / "lab"), quick)
    assert said == "2 nodes: k3lab1 (head), k3lab2; platform lab; model kimi-k3-mini; engine vllm-cpu"
    assert [(n.rank, n.ssh.address, n.fabric_address) for n in lab.inventory.nodes] == [
        (0, "10.77.0.11", "10.78.0.11"),
        (1, "10.77.0.12", "10.78.0.12"),
    ]
    four, said = validate(str(REPO / "inventories" / "lab4"), quick)
    assert said.startswith("4 nodes: ")
    assert [node.rank for node in four.inventory.nodes] == [0, 1, 2, 3]


def test_every_value_knows_its_origin(good: Path) -> None:
    found = origins(load(good))
    assert (found["fabric.subnet"].kind, found["fabric.subnet"].line) == ("inventory", 5)
    assert found["fabric.subnet"].file == str(good / "cluster.yml")
    assert found["endpoint.port"].kind == "default"
    assert found["launcher"].kind == "default"
