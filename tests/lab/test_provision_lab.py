"""Provisioning of two real hosts, in order: dry run, apply, again, stop, kill, failures, engine files, down."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from k3ctl.edge.known_hosts import KnownHosts
from k3ctl.errors import ConfigError, Interrupted, PhaseFailed, Unreachable
from k3ctl.events import Event, Progress
from k3ctl.protocols import PlayEvent
from k3ctl.provision.variables import down_variables
from k3ctl.secret import Secret
from k3ctl.stop import StopFlag
from tests.lab.provision_fixtures import NAME, Bench, lab_bench

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

ONE, TWO = f"{NAME}1", f"{NAME}2"
HOSTS = (
    "127.0.0.1\tlocalhost\n127.0.1.1\t{0}.example.org {0} other # set by the installer\n::1 localhost ip6-localhost\n"
)
MADE = ("/etc/sysctl.d/90-k3ctl.conf", "/etc/security/limits.d/90-k3ctl.conf", f"/var/lib/k3ctl/{NAME}/provision.json")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with lab_bench(tmp_path_factory.mktemp("inventories"), tmp_path_factory.mktemp("state")) as made:
        for node in made.nodes:
            script = 'cat >/etc/hosts <<"E"\n' + HOSTS.format(node) + "E\n"
            assert made.root(node, "sh", "-c", script).ok
            # Staging runs beside provisioning: what it has written stays as it is.
            assert made.root(node, "sh", "-c", "mkdir -p /srv/k3ctl/weights/r; echo w > /srv/k3ctl/weights/r/part").ok
        yield made


def processes(bench: Bench) -> list[str]:
    """Command lines on this machine that name a private folder of a play."""
    lines = subprocess.run(("ps", "-axww", "-o", "args="), capture_output=True, text=True, check=True, timeout=10)
    return [line for line in lines.stdout.splitlines() if f"{bench.state}/play-" in line]


def scratch(bench: Bench) -> list[Path]:
    """Private folders of plays that are there now."""
    return list(bench.state.glob("play-*"))


def test_dry_run_on_bare_hosts_shows_diffs_and_changes_nothing(bench: Bench) -> None:
    changes = bench.assess(dry_run=True).changes
    texts = {change.text for change in changes}
    assert {"Name the packages that a real run installs", "Set kernel values", "Make the user"} <= texts
    diffs = "\n".join(change.diff for change in changes)
    assert "+++ /etc/sysctl.d/90-k3ctl.conf" in diffs
    assert "+10.85.0.11 " in diffs
    for node in bench.nodes:
        assert not bench.root(node, "ls", *MADE).stdout
        assert not bench.root(node, "id", "k3ctl").ok


def test_bare_hosts_are_provisioned(bench: Bench) -> None:
    outcome = bench.provision()
    assert outcome.status == "changed"
    for node, address in ((ONE, "10.85.0.11"), (TWO, "10.85.0.12")):
        assert bench.root(node, "ls", *MADE).ok
        assert bench.root(node, "systemctl", "is-active", "chrony").ok
        for name in (ONE, TWO):
            found = bench.root(node, "getent", "ahosts", name).stdout.split()
            assert found[0] == ("10.85.0.11" if name == ONE else "10.85.0.12")
        own = {line.split()[0] for line in bench.root(node, "getent", "ahosts", node).stdout.splitlines()}
        assert own == {address}, "a loopback address here makes gloo publish it"
        assert bench.root(node, "hostname", "-f").stdout.strip() == f"{node}.example.org"
        assert bench.root(node, "getent", "hosts", "other").stdout.split()[0] == "127.0.1.1"
        owners = bench.root(node, "stat", "-c", "%U", "/srv/k3ctl/weights", "/srv/k3ctl/weights/r/part").stdout.split()
        assert owners == ["k3ctl", "root"]
    assert not scratch(bench)


def test_second_run_is_one_look_and_no_change(bench: Bench) -> None:
    began = time.monotonic()
    assessment = bench.assess()
    assert assessment.changes == ()
    assert "same roles and variables as applied at" in assessment.said
    assert time.monotonic() - began < 3


def test_asked_for_again_every_task_finds_its_result(bench: Bench) -> None:
    assert bench.provision(only=("provision",)).status == "unchanged"


def test_stop_ends_the_play_and_all_its_processes(bench: Bench) -> None:
    stop, asked = StopFlag(), []

    def on_first_task(event: Event) -> None:
        if isinstance(event, Progress) and not asked:
            asked.append(time.monotonic())
            stop.set()

    with pytest.raises(Interrupted) as caught:
        bench.provision(stop=stop, sink=on_first_task, only=("provision",))
    assert time.monotonic() - asked[0] < 6
    assert "may still be coming to its end" in caught.value.problems[0].found
    assert processes(bench) == []
    assert not scratch(bench)


def test_killed_run_ends_by_itself_and_the_next_one_cleans_up(bench: Bench) -> None:
    argv = (sys.executable, "-m", "tests.lab.provision_driver", str(bench.folder), str(bench.state))
    driver = subprocess.Popen(argv, cwd=Path(__file__).parents[2], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not any("ansible-playbook" in line for line in processes(bench)) and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(3)
    driver.kill()
    driver.wait()
    deadline = time.monotonic() + 10
    while any("ansible-playbook" in line for line in processes(bench)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not any("ansible-playbook" in line for line in processes(bench)), "left behind by the killed run"
    assert scratch(bench)
    bench.provision(only=("provision",))
    assert processes(bench) == []
    assert not scratch(bench)


def test_package_lock_is_waited_for_and_its_holder_named(bench: Bench) -> None:
    hold = "import fcntl, time; f = open('/var/lib/dpkg/lock-frontend', 'w'); fcntl.lockf(f, 2); time.sleep(60)"
    unit = ("systemd-run", "--unit=k3f-holder", "--collect", "python3", "-c", hold)
    assert bench.root(ONE, *unit).ok
    wants = bench.with_variables(base_extra_packages=["lsof"], base_apt_lock_timeout=4, base_apt_lock_interval=2)
    try:
        with pytest.raises(PhaseFailed) as caught:
            wants.provision()
    finally:
        bench.root(ONE, "systemctl", "stop", "k3f-holder")
    (problem,) = caught.value.problems
    assert problem.node == ONE
    assert "/var/lib/dpkg/lock-frontend" in problem.found
    assert "fcntl.lockf" in problem.found
    assert "another apt or dpkg" in problem.fix
    assert bench.root(TWO, "which", "lsof").ok, "the other node goes on"


def test_lost_host_and_changed_key_are_told_apart(bench: Bench) -> None:
    nodes = bench.cluster.inventory.nodes
    lost = replace(
        nodes[1], ssh=replace(nodes[1].ssh, port=2222), variables={**nodes[1].variables, "ansible_port": 2222}
    )
    inventory = replace(bench.cluster.inventory, nodes=(nodes[0], lost))
    other = replace(bench, cluster=replace(bench.cluster, inventory=inventory))
    keys = KnownHosts.of(bench.state)
    before = keys.read()
    first = [key for key in before if key.name == "10.84.0.11"]
    second = [key for key in before if key.name == "10.84.0.12"]
    keys.put([replace(key, name="10.84.0.11") for key in second])
    try:
        result = other.ansible.run(
            "provision", other.nodes, {}, check=True, stop=threading.Event(), on_event=lambda _event: None
        )
    finally:
        keys.put(first)
    assert set(result.unreachable) == {ONE, TWO}
    assert "Host key verification failed" in result.unreachable[ONE]
    assert "onnection refused" in result.unreachable[TWO]
    assert result.failures == {}


def test_lost_hosts_make_the_phase_unreachable(bench: Bench) -> None:
    nodes = tuple(replace(n, variables={**n.variables, "ansible_port": 2222}) for n in bench.cluster.inventory.nodes)
    cluster = replace(bench.cluster, inventory=replace(bench.cluster.inventory, nodes=nodes))
    with pytest.raises(Unreachable) as caught:
        replace(bench, cluster=cluster).provision(only=("provision",))
    assert [problem.node for problem in caught.value.problems] == [ONE, TWO]


def test_variable_that_a_role_refuses_is_a_configuration_error(bench: Bench) -> None:
    with pytest.raises(ConfigError) as caught:
        bench.with_variables(base_nofile_soft="many").provision()
    assert "base_nofile_soft" in caught.value.problems[0].found


def engine(key: str) -> dict[str, object]:
    unit = "[Unit]\nDescription=%n\n[Service]\nExecStart=/bin/sleep 1\n"
    return {
        **{name: value for name, value in down_variables_of(NAME).items() if name != "engine_state_dir"},
        "engine_unit_text": unit,
        "engine_launch_text": '{"template": "{{ not_a_variable }}"}\n',
        "engine_env_text": Secret(f"VLLM_API_KEY={key}\n"),
    }


def down_variables_of(name: str) -> dict[str, object]:
    return {
        "engine_cluster": name,
        "engine_unit_name": f"k3ctl-{name}.service",
        "engine_config_dir": f"/etc/k3ctl/{name}",
        "engine_state_dir": f"/var/lib/k3ctl/{name}",
    }


def test_engine_files_are_installed_and_the_key_is_never_shown(bench: Bench) -> None:
    assert down_variables(bench.cluster) == down_variables_of(NAME)
    events: list[PlayEvent] = []
    for check in (True, False):
        bench.ansible.run(
            "serve",
            bench.nodes,
            dict.fromkeys(bench.nodes, engine("geheim")),
            check=check,
            stop=threading.Event(),
            on_event=events.append,
        )
    assert "geheim" not in repr(events)
    assert "Say that the engine's environment is a new one" in {e.task for e in events if e.kind == "changed"}
    folder = f"/etc/k3ctl/{NAME}"
    assert bench.root(ONE, "cat", f"{folder}/launch.json").stdout == '{"template": "{{ not_a_variable }}"}\n'
    assert bench.root(ONE, "cat", f"{folder}/engine.env").stdout == "VLLM_API_KEY=geheim\n"
    assert bench.root(ONE, "stat", "-c", "%a", f"{folder}/engine.env").stdout.strip() == "600"
    assert bench.root(ONE, "systemctl", "cat", f"k3ctl-{NAME}.service").ok
    assert not bench.root(ONE, "systemctl", "is-active", f"k3ctl-{NAME}.service").ok


def test_down_takes_away_what_was_installed_and_gives_the_hosts_file_back(bench: Bench) -> None:
    variables = dict.fromkeys(bench.nodes, down_variables_of(NAME))
    again = [
        bench.ansible.run(
            "down", bench.nodes, variables, check=False, stop=threading.Event(), on_event=lambda _event: None
        )
        for _ in range(2)
    ]
    assert [result.status for result in again] == ["successful", "successful"]
    assert again[1].changed_tasks == ()
    for node in bench.nodes:
        gone = (f"/etc/k3ctl/{NAME}", f"/etc/systemd/system/k3ctl-{NAME}.service", f"/var/lib/k3ctl/{NAME}")
        assert not bench.root(node, "ls", "-d", *gone).stdout
        hosts = bench.root(node, "cat", "/etc/hosts").stdout
        assert f"127.0.1.1\t{node}.example.org {node} other # set by the installer\n" in hosts
        assert "k3ctl" not in hosts
        assert bench.root(node, "test", "-e", "/srv/k3ctl/weights/r/part").ok
