"""The generated inventory: connection variables, role variables as data, secrets apart."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from k3ctl.edge.ansible_files import connection, inventory_files, secrets_in, ssh_config, ssh_options
from k3ctl.inventory import Inventory, Node, SshTarget
from k3ctl.secret import Secret


class Unsafe(str):
    """What `!unsafe` text becomes in these tests."""


class Loader(yaml.SafeLoader):
    pass


Loader.add_constructor("!unsafe", lambda loader, node: Unsafe(loader.construct_scalar(node)))

ARGS = ssh_options(Path("/state/known_hosts"), Path("/run/ssh_config"))


def node(name: str = "gpu1", ssh: SshTarget | None = None, **variables: Any) -> Node:
    return Node(name, 0, ssh or SshTarget("10.0.0.1", user="k3"), "10.1.0.1", variables=variables)


def files(variables: dict[str, Any], *nodes: Node) -> dict[str, dict[str, Any]]:
    found = nodes or (node(),)
    cluster: Any = SimpleNamespace(inventory=Inventory("c", "/c", found))
    names = tuple(n.name for n in found)
    texts = inventory_files(cluster, names, dict.fromkeys(names, variables), ARGS)
    return {
        file: yaml.load(text, Loader=Loader)["all"]["children"]["gpu_nodes"]["hosts"]  # noqa: S506 - a SafeLoader
        for file, text in texts.items()
    }


def test_hosts_are_in_the_group_that_playbooks_name() -> None:
    hosts = files({}, node("gpu1"), node("gpu2"))["10-hosts.yml"]
    assert list(hosts) == ["gpu1", "gpu2"]


def test_users_connection_variables_win_over_derived_ones() -> None:
    made = connection(
        node(ansible_host="name.example.org", ansible_port=2222, ansible_ssh_common_args="-o ProxyJump=hop"), ARGS
    )
    assert made["ansible_host"] == "name.example.org"
    assert made["ansible_port"] == 2222
    assert made["ansible_ssh_common_args"] == "-o ProxyJump=hop"


def test_without_variables_the_ssh_target_is_enough() -> None:
    target = SshTarget("fd00::1", 2200, "admin", "/k", jump=("a@hop1:22", "b@hop2:2222"), become_password=Secret("p"))
    made = connection(node(ssh=target), ARGS)
    assert (made["ansible_host"], made["ansible_port"], made["ansible_user"]) == ("fd00::1", 2200, "admin")
    assert made["ansible_ssh_private_key_file"] == "/k"
    assert made["ansible_ssh_common_args"] == "-o ProxyJump=a@hop1:22,b@hop2:2222"
    assert made["ansible_become_password"] == "p"


def test_proxy_command_stays_one_argument() -> None:
    made = connection(node(ssh=SshTarget("h", proxy_command="ssh -W %h:%p hop")), ARGS)
    assert shlex.split(made["ansible_ssh_common_args"]) == ["-o", "ProxyCommand=ssh -W %h:%p hop"]


def test_host_key_checking_cannot_be_weakened_by_the_inventory() -> None:
    made = connection(node(ansible_ssh_args="-o StrictHostKeyChecking=no", ansible_host_key_checking=False), ARGS)
    arguments = shlex.split(made["ansible_ssh_args"])
    assert arguments.index("StrictHostKeyChecking=yes") < arguments.index("StrictHostKeyChecking=no")
    assert made["ansible_host_key_checking"] is True


def test_interpreter_is_fixed() -> None:
    assert (
        connection(node(ssh=SshTarget("h", python="/opt/py/bin/python3")), ARGS)["ansible_python_interpreter"]
        == "/opt/py/bin/python3"
    )


def test_k3ctls_own_variables_stay_out() -> None:
    assert "k3ctl_fabric_address" not in connection(node(k3ctl_fabric_address="10.1.0.1"), ARGS)


def test_role_variables_are_data_and_never_templates() -> None:
    hosts = files({"engine_launch_text": "{{ lookup('pipe', 'id') }}", "base_hosts": [{"names": ["{{ x }}"]}]})
    made = hosts["10-hosts.yml"]["gpu1"]
    assert isinstance(made["engine_launch_text"], Unsafe)
    assert isinstance(made["base_hosts"][0]["names"][0], Unsafe)


def test_users_own_variables_stay_templates_but_connection_is_resolved() -> None:
    made = files({}, node(base_extra_packages=["{{ tools }}"], ansible_password="p{{"))["10-hosts.yml"]["gpu1"]
    assert not isinstance(made["base_extra_packages"][0], Unsafe)
    assert isinstance(made["ansible_password"], Unsafe)


@pytest.mark.parametrize("text", ["a\n", "", "a: b", "tab\there", "umlaut ä", "- x", "'\"", "%i", "null", "0755", "{{"])
def test_text_survives_as_it_is(text: str) -> None:
    assert files({"engine_unit_text": text})["10-hosts.yml"]["gpu1"]["engine_unit_text"] == text


@pytest.mark.parametrize("value", [True, 0, 1.5, None, [], {}, [1, [2]], {"a": {"b": [None]}}])
def test_other_values_survive_as_they_are(value: Any) -> None:
    assert files({"base_x": value})["10-hosts.yml"]["gpu1"]["base_x"] == value


def test_secrets_are_in_a_file_of_their_own() -> None:
    made = files({"engine_env_text": Secret("KEY=geheim\n"), "engine_unit_text": "u"})
    assert made["20-secrets.yml"]["gpu1"] == {"engine_env_text": "KEY=geheim\n"}
    assert "engine_env_text" not in made["10-hosts.yml"]["gpu1"]


def test_secrets_are_found_at_any_depth() -> None:
    assert [s.reveal() for s in secrets_in({"a": [{"b": Secret("1")}], "c": (Secret("2"), "x")})] == ["1", "2"]


def test_our_ssh_rules_come_before_the_users_configuration() -> None:
    lines = ssh_config(Path("/state/known_hosts"), ["/k", "/k", "/l"]).splitlines()
    assert lines.index("StrictHostKeyChecking yes") < lines.index("Include ~/.ssh/config")
    assert lines.count('IdentityFile "/k"') == 1
    assert 'UserKnownHostsFile "/state/known_hosts"' in lines
