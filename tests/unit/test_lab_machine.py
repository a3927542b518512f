"""A machine's files, its systemd-nspawn, its service, and what the outer machine must have."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from k3ctl.lab import machine, outer, services, supervise
from k3ctl.lab.base import locked, recipe
from k3ctl.lab.definition import define
from k3ctl.lab.faults import CATALOGUE, chosen
from k3ctl.lab.process import LabFailed
from k3ctl.lab.services import Service
from k3ctl.lab.trust import without
from tests.unit.test_lab_definition import cluster, node

LAB = define(cluster(node(0), node(1), node(2)))


def test_the_machine_boots_in_its_own_namespace_without_the_clock() -> None:
    argv = machine.nspawn(LAB, LAB.hosts[1], ("/w",))
    space = f"/run/netns/{LAB.layout.prefix}-n1"
    assert argv[:2] == ["nsenter", f"--net={space}"]
    assert f"--network-namespace-path={space}" in argv
    assert "--drop-capability=CAP_SYS_TIME" in argv
    assert argv[-1] == "--bind-ro=/w"


def test_a_unit_restarts_on_reboot_only_and_a_server_always() -> None:
    service = Service("k3x-n1", ("prog", "a"), Path("/f"), Path("/f/log"), {"A": "1"})
    argv = services.systemd_run(service)
    assert argv[-3:] == ["--", "prog", "a"]
    assert "--property=RestartForceExitStatus=133" in argv
    assert "--property=Delegate=yes" in argv
    assert "--setenv=A=1" in argv
    server = services.systemd_run(Service("k3x-hub", ("prog",), Path("/f"), Path("/f/log"), restart="always"))
    assert "--property=Restart=always" in server


def supervised(folder: Path, script: str, restart: object) -> subprocess.Popen[bytes]:
    spec = {"argv": ["sh", "-c", script], "env": {}, "restart": restart, "groups": []}
    (folder / "service.json").write_text(json.dumps(spec))
    return subprocess.Popen([sys.executable, "-I", supervise.__file__, str(folder / "service.json")])


def test_the_supervisor_restarts_after_a_reboot_and_then_returns_the_status(tmp_path: Path) -> None:
    script = f"echo x >> {tmp_path}/runs; test $(wc -l < {tmp_path}/runs) = 3 || exit 133; exit 4"
    assert supervised(tmp_path, script, [133]).wait(timeout=20) == 4
    assert (tmp_path / "runs").read_text() == "x\n" * 3


def test_the_supervisor_gives_up_on_a_crash_loop(tmp_path: Path) -> None:
    assert supervised(tmp_path, f"echo x >> {tmp_path}/runs; exit 1", "always").wait(timeout=20) == 1
    assert (tmp_path / "runs").read_text() == "x\n" * 5


def test_a_killed_supervisor_takes_its_program_with_it_and_a_second_is_refused(tmp_path: Path) -> None:
    first = supervised(tmp_path, "exec sleep 60", [133])
    pid = _child(tmp_path)
    assert supervised(tmp_path, "exit 0", [133]).wait(timeout=20) == 75
    first.kill()
    first.wait()
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}/cmdline").exists() and b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_terminated_supervisor_ends_its_program(tmp_path: Path) -> None:
    process = supervised(tmp_path, "exec sleep 60", "always")
    pid = _child(tmp_path)
    process.terminate()
    assert process.wait(timeout=20) == 256 - 15  # a negative status, as a byte
    assert not Path(f"/proc/{pid}").exists()


def _child(folder: Path) -> int:
    end = time.monotonic() + 20
    while not (folder / "child.pid").exists() or not (folder / "child.pid").read_text():
        assert time.monotonic() < end
        time.sleep(0.02)
    pid = int((folder / "child.pid").read_text())
    while b"sleep" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < end
        time.sleep(0.02)
    return pid


def test_is_mounted_is_read_from_mountinfo() -> None:
    root = LAB.layout.machine("n1") / "root"
    line = f"60 26 0:44 / {root} rw,relatime shared:1 - overlay overlay rw\n"
    assert machine.mounted(LAB.layout, "n1", line)
    assert not machine.mounted(LAB.layout, "n0", line)
    assert not machine.mounted(LAB.layout, "n1", "")


def test_the_file_system_below_a_folder() -> None:
    mounts = (
        "26 1 253:0 / / rw - overlay overlay rw\n"
        "30 26 253:1 / /var rw - ext4 /dev/x rw\n"
        "31 26 253:2 / /variable rw - xfs /dev/y rw\n"
    )
    assert outer.file_system_of(Path("/var/lib/k3ctl-lab"), mounts) == "ext4"
    assert outer.file_system_of(Path("/opt"), mounts) == "overlay"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n', outer.Distribution("debian", "12", "bookworm")),
        ("# c\nID=ubuntu\nVERSION_ID='24.04'\n", outer.Distribution("ubuntu", "24.04", "")),
        ("", outer.Distribution("", "", "")),
    ],
)
def test_os_release(text: str, expected: outer.Distribution) -> None:
    assert outer.parse_os_release(text) == expected


def test_the_base_is_named_by_its_recipe() -> None:
    bookworm, trixie = outer.Distribution("debian", "12", "bookworm"), outer.Distribution("debian", "13", "trixie")
    assert recipe(bookworm, "x86_64").startswith("bookworm-")
    assert len({recipe(bookworm, "x86_64"), recipe(bookworm, "aarch64"), recipe(trixie, "x86_64")}) == 3


@pytest.mark.parametrize(
    ("system", "uid", "said"), [("Darwin", 0, "needs Linux"), ("Linux", 1000, "needs root"), ("Linux", 0, "")]
)
def test_who_may_make_a_lab(system: str, uid: int, said: str) -> None:
    problem = outer.root_problem(system, uid)
    assert said in (problem.what if problem else "")
    assert bool(problem) is bool(said)


def test_missing_programs_become_packages_with_a_purpose() -> None:
    found = outer.missing_packages(lambda name: None if name in ("nft", "ssh", "ssh-keygen") else f"/bin/{name}")
    assert set(found) - {"libc6-dev"} == {"nftables", "openssh-client"}
    assert "package servers" in found["nftables"]


def test_path_gets_the_folders_of_root_s_programs_once() -> None:
    assert outer.with_sbin("/bin:/sbin") == "/bin:/sbin:/usr/sbin"
    assert outer.with_sbin(outer.with_sbin("")) == "/usr/sbin:/sbin"


def test_known_hosts_without_the_lab_s() -> None:
    text = "10.7.0.11,n0 ssh-ed25519 A\nother ssh-ed25519 B\n\nn1 ssh-rsa C\n"
    assert without(text, ["10.7.0.11", "n1"]) == "other ssh-ed25519 B\n\n"


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_every_fault_has_a_way_back(name: str) -> None:
    fault, host = CATALOGUE[name], LAB.hosts[0]
    given = {key: "n1" for key in ("peer", "name") if key in fault.options}
    options = chosen(fault, given, LAB, host)
    made, undone = fault.make(LAB, host, options), fault.undo(LAB, host, options)
    assert made
    assert undone
    assert {step.where for step in made} == {step.where for step in undone}


def test_a_fault_between_machines_needs_a_peer_when_there_are_several() -> None:
    with pytest.raises(Exception, match="needs option `peer`"):
        chosen(CATALOGUE["partition"], {}, LAB, LAB.hosts[0])
    pair = define(cluster(node(0), node(1)))
    assert chosen(CATALOGUE["partition"], {}, pair, pair.hosts[0])["peer"] == "n1"


def test_a_lock_is_held_once_and_a_removed_one_is_no_lock(tmp_path: Path) -> None:
    file, said = tmp_path / "locks" / "l", list[str]()
    with locked(file, said.append, "busy"):
        with pytest.raises(LabFailed, match="busy"), locked(file, said.append, "busy", wait_s=0.0):
            pass
        assert said == ["busy: waiting"]
        file.unlink()
        with locked(file, said.append, "busy", wait_s=0.0):
            assert file.exists()
    with locked(file, said.append, "busy", wait_s=0.0):
        assert len(said) == 1
