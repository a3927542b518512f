"""The real pynvml against the stand-in library, each time in a process of its own, as on a node."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from k3ctl.errors import ConfigError
from k3ctl.lab import hardware
from k3ctl.lab.sim import library, machine
from k3ctl.lab.sim.machine import SimGpu, SimHca, SimMachine
from tests.local.test_probe import called

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")

EIGHT = SimMachine(
    driver="580.95.05",
    cuda=13000,
    gpus=tuple(
        SimGpu(
            name="NVIDIA H200",
            uuid=f"GPU-{number}",
            serial=f"16500000000{number}",
            bus_id=f"00000000:{number + 1:02X}:00.0",
            memory_bytes=150_754_820_096,
            memory_used_bytes=614 << 20,
            ecc_uncorrected=number,
        )
        for number in range(8)
    ),
    hcas=(SimHca(name="mlx5_0", netdev="eth1"),),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the library, compiled once."""
    path = tmp_path_factory.mktemp("nvml")
    library.build(path)
    return path


def gpus_of(folder: Path, described: SimMachine, tmp_path: Path, limit_s: float = 10.0) -> dict[str, Any]:
    """The section `gpus` on a machine of that description."""
    text = tmp_path / "machine.txt"
    text.write_text(described.nvml_text())
    payload = {"collectors": ["gpus"], "nvml_library_path": str(folder), "limits_s": {"gpus": limit_s}}
    section: dict[str, Any] = called(payload, K3SIM_MACHINE=str(text))["sections"]["gpus"]
    return section


@pytest.mark.parametrize("count", [0, 1, 2, 8])
def test_every_gpu_as_described(folder: Path, tmp_path: Path, count: int) -> None:
    found = gpus_of(folder, replace(EIGHT, gpus=EIGHT.gpus[:count]), tmp_path)["value"]
    assert (found["count"], len(found["gpus"]), found["driver"], found["cuda"]) == (count, count, "580.95.05", "13.0")
    for gpu, described in zip(found["gpus"], EIGHT.gpus[:count], strict=True):
        assert gpu["unread"] == {}
        assert (gpu["name"], gpu["uuid"], gpu["serial"]) == (described.name, described.uuid, described.serial)
        assert (gpu["bus_id"], gpu["capability"]) == (described.bus_id, "9.0")
        assert (gpu["memory_bytes"], gpu["memory_used_bytes"]) == (described.memory_bytes, 614 << 20)
        assert (gpu["ecc_on"], gpu["ecc_pending_on"], gpu["ecc_uncorrected"]) == (True, True, described.ecc_uncorrected)
        assert (gpu["temperature_c"], gpu["power_mw"], gpu["utilisation_percent"]) == (32, 75_000, 0)


def test_a_lost_gpu_is_counted_and_named(folder: Path, tmp_path: Path) -> None:
    found = gpus_of(folder, EIGHT.lose_gpu(), tmp_path)["value"]
    assert found["count"] == 8
    assert found["gpus"][7] == {"index": 7, "error": "GPU is lost"}
    assert all("error" not in gpu for gpu in found["gpus"][:7])


@pytest.mark.parametrize("where", ["init", "device"])
def test_a_driver_that_hangs(folder: Path, tmp_path: Path, where: Any) -> None:
    began = time.monotonic()
    section = gpus_of(folder, replace(EIGHT, hang=where), tmp_path, limit_s=0.7)
    assert time.monotonic() - began < 10
    assert (section["error"], section["detail"]) == ("timeout", "no answer within 0.7 s")


def test_a_field_that_the_card_lacks_is_unread_alone(folder: Path, tmp_path: Path) -> None:
    found = gpus_of(folder, replace(EIGHT, gpus=(replace(EIGHT.gpus[0], serial=""),)), tmp_path)["value"]
    (gpu,) = found["gpus"]
    assert gpu["serial"] is None
    assert gpu["unread"] == {"serial": "Not Supported"}


def test_a_function_that_the_driver_lacks_is_unread_alone(tmp_path: Path) -> None:
    text = library.SOURCE.read_text().replace("nvmlDeviceGetPowerUsage", "nvmlDeviceGetPowerUsageOfTomorrow")
    assert text != library.SOURCE.read_text()
    (tmp_path / "nvml.c").write_text(text)
    library.build(tmp_path, tmp_path / "nvml.c")
    (gpu,) = gpus_of(tmp_path, replace(EIGHT, gpus=EIGHT.gpus[:1]), tmp_path)["value"]["gpus"]
    assert gpu["power_mw"] is None
    assert list(gpu["unread"]) == ["power_mw"]
    assert gpu["temperature_c"] == 32


def test_no_library_and_no_driver(folder: Path, tmp_path: Path) -> None:
    payload = {"collectors": ["gpus"], "nvml_library_path": str(tmp_path)}
    section = called(payload)["sections"]["gpus"]
    assert section["error"] == "failed"
    assert "does not load" in section["detail"]
    payload["nvml_library_path"] = str(folder)
    section = called(payload, K3SIM_MACHINE=str(tmp_path / "none.txt"))["sections"]["gpus"]
    assert section["detail"] == "NVML does not start: Driver Not Loaded"


def test_install_inject_clear(tmp_path: Path) -> None:
    root = tmp_path / "node1"
    assert hardware.install(root) is True
    assert hardware.install(root) is False
    healthy = {path: path.read_bytes() for path in (root / "opt").rglob("*") if path.is_file()}
    for name in hardware.FAULTS:
        hardware.inject(root, name)
        hardware.inject(root, name)
        assert hardware.active(root) == (name,)
        assert hardware.install(root) is False  # an active fault stays
        hardware.clear(root, name)
        hardware.clear(root, name)
        assert hardware.active(root) == ()
        assert {path: path.read_bytes() for path in (root / "opt").rglob("*") if path.is_file()} == healthy


def test_faults_add_up_and_survive_another_description(tmp_path: Path) -> None:
    root = tmp_path / "node1"
    hardware.install(root, EIGHT)
    hardware.inject(root, "gpu-lost")
    hardware.inject(root, "hca-down")
    two = replace(EIGHT, hcas=(*EIGHT.hcas, SimHca(name="mlx5_1", netdev="eth2")))
    assert hardware.install(root, two) is True
    assert hardware.active(root) == ("gpu-lost", "hca-down")
    ports = root / "opt/k3sim/sys/class/infiniband"
    assert (ports / "mlx5_0/ports/1/state").read_text() == "1: DOWN\n"
    assert (ports / "mlx5_1/ports/1/state").read_text() == "4: ACTIVE\n"
    assert (root / "opt/k3sim/machine.txt").read_text().count("lost 1") == 1
    assert hardware.install(root, EIGHT) is True
    assert not (ports / "mlx5_1").exists()


def test_install_repairs_what_is_half_there(tmp_path: Path) -> None:
    root = tmp_path / "node1"
    hardware.install(root)
    (root / "opt/k3sim/gpus.json").write_text("{")
    assert hardware.install(root) is True
    (root / "opt/k3sim/lib" / library.NAME).unlink()
    assert hardware.install(root) is True
    assert (root / "opt/k3sim/lib" / library.NAME).is_file()


def test_hosts_have_identities_of_their_own() -> None:
    one, other = machine.named("lab").on("k3lab1"), machine.named("lab").on("k3lab2")
    assert one.gpus[0].uuid != other.gpus[0].uuid
    assert one.hcas[0].node_guid != other.hcas[0].node_guid
    assert one == machine.named("lab").on("k3lab1")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("driver: '1'\ncuda: 1\ngpus: []\nhcas: []\nhang: sometimes\n", "hang"),
        ("driver: '1'\ncuda: -1\ngpus: []\nhcas: []\n", "cuda"),
        ('driver: "a\\nhang init"\ncuda: 1\ngpus: []\nhcas: []\n', "driver"),
        ("driver: '1'\ncuda: 1\ngpus: [{name: x}]\nhcas: []\n", "gpus.0.uuid"),
        ("a: [", ""),
    ],
)
def test_a_wrong_description_names_its_key(text: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        machine.parse(text, "m.yml")
    assert caught.value.problems[0].key == key
    assert caught.value.problems[0].file == "m.yml"


def test_no_fault_and_no_machine_of_that_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no hardware fault"):
        hardware.inject(tmp_path, "gpu-on-fire")
    with pytest.raises(ConfigError, match="no machine description"):
        machine.named("dgx")
