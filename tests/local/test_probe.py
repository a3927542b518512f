"""The probe: collectors on made-up trees, and each apart from the others in time, crash and death."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from k3ctl.facts.node import SECTIONS, Heard, parse_facts
from k3ctl.lab.sim import library, machine, sysfs
from k3ctl.node import probe
from k3ctl.node.probes import clock, disk, hcas, host, limits, names, network
from k3ctl.node.probes.source import CannotTell, pairs, tool, tool_json, under


def write(root: Path, files: dict[str, str]) -> Path:
    """A tree; a path that ends in / is an empty folder."""
    for path, content in files.items():
        target = root / path
        if path.endswith("/"):
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content)
    return root


def called(payload: dict[str, Any], **env: str) -> dict[str, Any]:
    """The verb as a program, the way a node runs it."""
    done = subprocess.run(
        [sys.executable, "-m", "k3ctl.node", "probe"],
        input=json.dumps(payload),
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, **env},
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# --- the runner ------------------------------------------------------------------------------------------------------


def test_whole_probe_of_this_machine_is_quick_and_makes_sense() -> None:
    began = time.monotonic()
    reply = called({"disk": [{"name": "weights", "path": "/srv/none/there"}], "ports": [22]})
    assert time.monotonic() - began < 15  # 0.3 s on an idle machine; a bound for a busy one
    assert set(reply["sections"]) == set(probe.COLLECTORS) == set(SECTIONS)
    facts = parse_facts("here", Heard(reply, reply["started"] - 0.1, reply["ended"] + 0.1))
    senseless = [name for name in SECTIONS if "makes no sense" in facts.section(name).error]
    assert not senseless
    assert facts.host.value is not None
    assert facts.host.value.kernel == os.uname().release
    assert facts.offset is not None
    assert facts.offset.middle == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("chosen", [["clock"], ["clock", "hcas"]])
def test_only_the_collectors_asked_for(chosen: list[str]) -> None:
    assert sorted(probe.run({"collectors": chosen})["sections"]) == chosen


def test_an_unknown_collector_is_an_error_of_its_own() -> None:
    sections = probe.run({"collectors": ["clock", "os"]})["sections"]
    assert "no collector" in sections["os"]["error"] + sections["os"]["detail"]
    assert "value" in sections["clock"]


def test_a_collector_that_fails_says_why_and_harms_no_other() -> None:
    sections = probe.run({"collectors": ["hcas", "clock"], "sysfs_root": "/nowhere"})["sections"]
    assert sections["hcas"]["error"] == "failed"
    assert sections["hcas"]["detail"] == "there is no folder /nowhere"
    assert "value" in sections["clock"]


def test_a_collector_that_breaks_names_its_exception() -> None:
    section = probe.run({"collectors": ["disk"], "disk": [{"name": "weights"}]})["sections"]["disk"]
    assert section["detail"] == "KeyError: 'path'"


def test_an_answer_larger_than_a_pipe_arrives_whole(tmp_path: Path) -> None:
    for number in range(400):
        write(tmp_path, {f"class/infiniband/mlx5_{number}/ports/1/state": "4: ACTIVE\n"})
    section = probe.run({"collectors": ["hcas"], "sysfs_root": str(tmp_path)})["sections"]["hcas"]
    assert len(section["value"]["devices"]) == 400
    assert len(json.dumps(section)) > 1 << 16


def test_a_file_that_blocks_is_a_timeout_in_time(tmp_path: Path) -> None:
    write(tmp_path, {"class/infiniband/mlx5_0/": ""})
    os.mkfifo(tmp_path / "class/infiniband/mlx5_0/fw_ver")  # reading a pipe without a writer never ends
    began = time.monotonic()
    reply = probe.run({"collectors": ["hcas", "clock"], "sysfs_root": str(tmp_path), "limits_s": {"hcas": 0.3}})
    assert time.monotonic() - began < 10
    assert reply["sections"]["hcas"]["error"] == "timeout"
    assert reply["sections"]["hcas"]["detail"] == "no answer within 0.3 s"
    assert "value" in reply["sections"]["clock"]


def children() -> set[int]:
    """Processes whose parent is this one, zombies included."""
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return {int(pid) for pid in text.split()}


def test_nothing_is_left_over(tmp_path: Path) -> None:
    before = children()
    write(tmp_path, {"class/infiniband/mlx5_0/": ""})
    os.mkfifo(tmp_path / "class/infiniband/mlx5_0/fw_ver")
    probe.run({"collectors": ["hcas", "clock", "host"], "sysfs_root": str(tmp_path), "limits_s": {"hcas": 0.2}})
    assert children() <= before


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_a_library_that_crashes_takes_only_its_collector(tmp_path: Path) -> None:
    source = tmp_path / "bad.c"
    source.write_text("#include <signal.h>\nint nvmlInitWithFlags(unsigned f) { (void)f; return raise(SIGSEGV); }\n")
    target = tmp_path / library.NAME
    subprocess.run(
        ["cc", "-shared", "-fPIC", f"-Wl,-soname,{library.NAME}", "-o", str(target), str(source)],
        check=True,
        timeout=60,
    )
    sections = called({"collectors": ["gpus", "clock"], "nvml_library_path": str(target)})["sections"]
    assert sections["gpus"]["detail"] == "its process was ended by signal 11"
    assert "value" in sections["clock"]


# --- where facts come from -------------------------------------------------------------------------------------------


def test_a_missing_tool_and_a_tool_without_json() -> None:
    with pytest.raises(CannotTell, match="no-such-tool is not installed"):
        tool(["no-such-tool"])
    with pytest.raises(CannotTell, match=r"echo hello .* did not answer in JSON"):
        tool_json(["echo", "hello"])
    with pytest.raises(CannotTell, match="did not end within"):
        tool(["sleep", "5"], 0.1)


def test_pairs_and_paths() -> None:
    assert pairs('ID=debian\nNAME="Debian GNU/Linux"\nnothing\n') == {"ID": "debian", "NAME": "Debian GNU/Linux"}
    assert pairs(None) == {}
    assert under("/tree", "/etc/x") == "/tree/etc/x"
    assert under("", "/etc/x") == "/etc/x"


# --- collectors ------------------------------------------------------------------------------------------------------


def test_host_from_a_tree(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "etc/os-release": 'ID=ubuntu\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04.3 LTS"\n',
            "proc/meminfo": "MemTotal:       2113472124 kB\nMemAvailable:   2000000000 kB\nHugePages_Total:       0\n",
            "proc/uptime": "12.50 99.0\n",
        },
    )
    found = host.collect({"root": str(root)})
    assert (found["os_id"], found["os_version"]) == ("ubuntu", "24.04")
    assert found["memory_bytes"] == 2113472124 * 1024
    assert found["swap_bytes"] is None
    assert found["uptime_s"] == 12.5
    assert found["boot_id"] is None


def test_host_of_an_empty_tree_knows_nothing_of_it(tmp_path: Path) -> None:
    found = host.collect({"root": str(tmp_path)})
    assert {found[key] for key in ("os_id", "os_version", "memory_bytes", "uptime_s", "boot_id")} == {None}


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("infinity", "unlimited"),
        ("18446744073709551615", "unlimited"),
        ("8388608", 8388608),
        ("0", 0),
        ("", None),
        (None, None),
        ("[not set]", None),
    ],
)
def test_limits_in_systemds_words(said: str | None, meant: object) -> None:
    assert limits.limit(said) == meant


@pytest.mark.parametrize(
    ("status", "may"),
    [
        ("CapBnd:\t000001ffffffffff\n", True),
        ("CapBnd:\t0000000001000000\n", True),
        ("CapBnd:\t0000000000ffffff\n", False),
        ("Name:\tsystemd\n", None),
        (None, None),
    ],
)
def test_may_process_1_raise_limits(status: str | None, *, may: bool | None) -> None:
    assert limits.can_raise(status) is may


def test_disk_looks_at_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    (tmp_path / "weights/a").mkdir(parents=True)
    (tmp_path / "weights/a/shard").write_bytes(b"x" * 100_000)
    (tmp_path / "done").write_text("{}")
    wanted = [
        {"name": "weights", "path": f"{tmp_path}/weights/b/c", "holds": [f"{tmp_path}/weights/a", "/nowhere"]},
        {"name": "runtime", "path": str(tmp_path), "marker": f"{tmp_path}/done"},
        {"name": "other", "path": "/nowhere/at/all", "marker": "/nowhere/done"},
    ]
    weights, runtime, other = disk.collect({"disk": wanted})["paths"]
    assert weights["at"] == f"{tmp_path}/weights"
    assert 100_000 <= weights["held_bytes"] < 200_000
    assert weights["complete"] is None
    assert runtime["complete"] is True
    assert runtime["device"] == weights["device"]
    assert (other["at"], other["complete"], other["held_bytes"]) == ("/", False, 0)
    assert weights["free_bytes"] > 0
    assert weights["read_only"] is False


def test_holes_are_not_counted_as_held(tmp_path: Path) -> None:
    with (tmp_path / "part").open("wb") as file:
        file.truncate(1 << 30)
    assert disk.held([str(tmp_path)]) == 0


def test_the_mount_that_holds_a_path() -> None:
    table = disk.mount_table(
        "22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n"
        "40 22 9:0 / /srv rw,relatime shared:2 - xfs /dev/md0 rw\n"
        "41 22 0:50 / /srv/my\\040disk ro,relatime shared:3 - nfs4 host:/x ro\n"
        "42 22 0:51 / /srv rw - tmpfs tmpfs rw\n"
        "garbage\n"
    )
    assert disk.mount_of("/srv/weights", table) == ("tmpfs", False)  # the later mount covers the earlier one
    assert disk.mount_of("/srv/my disk/x", table) == ("nfs4", True)
    assert disk.mount_of("/srvx", table) == ("ext4", False)
    assert disk.mount_of("/srv", []) == (None, None)


def test_interfaces_from_ip_and_sysfs(tmp_path: Path) -> None:
    write(tmp_path, {"class/net/bond0/speed": "400000\n", "class/net/eth1/speed": "-1\n"})
    said = [
        {"ifname": "lo", "flags": ["LOOPBACK", "UP", "LOWER_UP"], "mtu": 65536, "operstate": "UNKNOWN"},
        {
            "ifname": "bond0",
            "flags": ["BROADCAST", "UP", "LOWER_UP"],
            "mtu": 9000,
            "operstate": "UP",
            "addr_info": [{"local": "10.78.0.11"}, {"local": "fe80::1"}],
        },
        {"ifname": "eth1", "flags": ["BROADCAST", "UP"], "mtu": 1500, "operstate": "DOWN"},
        {},
    ]
    lo, bond, eth = network.interfaces(said, str(tmp_path))
    assert (lo["loopback"], lo["up"]) == (True, True)
    assert (bond["addresses"], bond["speed_mbps"], bond["up"]) == (["10.78.0.11", "fe80::1"], 400000, True)
    assert (eth["up"], eth["speed_mbps"]) == (False, None)


def test_listening_sockets_of_this_process() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as six,
    ):
        port, port6 = server.getsockname()[1], six.getsockname()[1]
        found = {entry["port"]: entry for entry in network.listening("/proc", {port})}
    assert found[port]["address"] == "127.0.0.1"
    assert found[port]["pid"] == os.getpid()
    assert found[port]["program"]
    assert found[port6]["address"] == "::1"
    assert found[port6]["pid"] is None  # not asked for


def test_listening_from_a_table(tmp_path: Path) -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    row = "   {n}: {local} 00000000:0000 {st} 00000000:00000000 00:00000000 00000000     0        0 {inode} 1\n"
    rows = row.format(n=0, local="0100007F:1F40", st="0A", inode=11) + row.format(
        n=1, local="00000000:1F41", st="01", inode=12
    )
    write(tmp_path, {"net/tcp": head + rows + "short\n", "7/comm": "vllm\n"})
    write(tmp_path, {"7/cgroup": "0::/system.slice/k3ctl-lab.service\n", "7/fd/": "", "8/fd/": "", "x/": ""})
    (tmp_path / "7/fd/3").symlink_to("socket:[11]")
    assert network.listening(str(tmp_path), {8000}) == [
        {"address": "127.0.0.1", "port": 8000, "pid": 7, "program": "vllm", "unit": "k3ctl-lab.service"}
    ]
    with pytest.raises(CannotTell, match="cannot be read"):
        network.listening(str(tmp_path / "nowhere"), {8000})


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("0::/system.slice/k3ctl-lab.service\n", "k3ctl-lab.service"),
        ("0::/system.slice/k3ctl-lab.service/payload\n", "k3ctl-lab.service"),
        ("4:memory:/a\n1:name=systemd:/system.slice/ssh.service\n", "ssh.service"),
        ("0::/user.slice/user-0.slice/session-1.scope\n", None),
        ("", None),
        (None, None),
    ],
)
def test_the_unit_of_a_process(cgroup: str | None, unit: str | None) -> None:
    assert network.unit(cgroup) == unit


def test_ephemeral_ports() -> None:
    assert network.ephemeral("32768\t60999") == [32768, 60999]
    assert network.ephemeral("") is None
    assert network.ephemeral("a b") is None


def test_names_with_one_that_does_not_exist() -> None:
    found = names.collect({"peers": [{"name": "127.0.0.1"}, {"name": "no-such-host.invalid"}, {"name": "a" * 70}]})
    assert found["own"]["name"] == socket.gethostname()
    assert set(found["peers"][0]["addresses"]) <= {"127.0.0.1"}
    assert found["peers"][1]["error"]
    assert found["peers"][2]["error"]


@pytest.mark.parametrize(
    ("tracking", "good"),
    [
        ("C0248F86,192.36.143.134,2,1700.1,-0.0001,0,0,0,0,0,0.01,0.002,64.2,Normal\n", True),
        ("00000000,,0,0.0,0,0,0,0,0,0,1,1,0.0,Not synchronised\n", False),
        ("506 Cannot talk to daemon\n", None),
        ("", None),
    ],
)
def test_what_chrony_says(tracking: str, *, good: bool | None) -> None:
    assert clock.chrony_says(tracking) is good


def test_hcas_from_a_generated_tree(tmp_path: Path) -> None:
    described = machine.named("lab").on("node1")
    write(tmp_path, sysfs.tree(described))
    (device,) = hcas.collect({"sysfs_root": str(tmp_path)})["devices"]
    assert (device["name"], device["netdevs"], device["board"]) == ("mlx5_0", ["eth1"], "MT_0000000838")
    (port,) = device["ports"]
    assert (port["state"], port["physical"], port["rate_gbps"]) == ("ACTIVE", "LinkUp", 400.0)
    assert port["link_downed"] == 0


def test_hcas_without_any_and_with_half_a_device(tmp_path: Path) -> None:
    assert hcas.collect({"sysfs_root": str(tmp_path)}) == {"devices": []}
    write(tmp_path, {"class/infiniband/mlx5_0/ports/1/": "", "class/infiniband/mlx5_0/ports/x/": ""})
    (device,) = hcas.collect({"sysfs_root": str(tmp_path)})["devices"]
    assert device["ports"] == [
        {"port": 1, "state": None, "physical": None, "link_layer": None, "rate_gbps": None, "link_downed": None}
    ]


@pytest.mark.parametrize(
    ("said", "gbps"),
    [
        ("400 Gb/sec (4X NDR)", 400.0),
        ("2.5 Gb/sec (1X SDR)", 2.5),
        ("800 Gb/sec (8X NDR)", 800.0),
        ("", None),
        ("x", None),
    ],
)
def test_rates(said: str, gbps: float | None) -> None:
    assert hcas.rate(said) == gbps
