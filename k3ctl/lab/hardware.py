"""Simulated hardware inside a lab host: installed under /opt/k3sim of its root, and broken there on request.

/opt/k3sim/ holds lib/libnvidia-ml.so.1, machine.txt (what that library reads), sys/ (what the probe reads in place of
/sys), gpus.json (the description that all of this is made from, with the active faults) and .digest.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from k3ctl.errors import ConfigError, PhaseFailed, Problem
from k3ctl.lab.sim import library, machine, sysfs
from k3ctl.lab.sim.machine import SimMachine

FOLDER = "opt/k3sim"


@dataclass(frozen=True)
class HardwareFault:
    """What breaks, and how it changes the description."""

    title: str
    break_: Callable[[SimMachine], SimMachine]


FAULTS: Mapping[str, HardwareFault] = {
    "gpu-lost": HardwareFault("the last GPU falls off the bus", SimMachine.lose_gpu),
    "gpu-hang": HardwareFault("calls into the GPU driver never return", lambda healthy: replace(healthy, hang="init")),
    "hca-down": HardwareFault("the first RDMA port loses its link", SimMachine.hca_down),
}


@dataclass(frozen=True)
class _Installed:
    """What is in a root: the healthy description and the names of the active faults."""

    healthy: SimMachine
    faults: tuple[str, ...] = ()

    @property
    def shown(self) -> SimMachine:
        """The description with its faults."""
        found = self.healthy
        for name in self.faults:
            found = FAULTS[name].break_(found)
        return found


def install(root: Path, described: SimMachine | None = None) -> bool:
    """Put the hardware into a host's root; True when something was done. Without a description: the lab's, with
    identities of this host.

    Cheap when it is there already; active faults stay.
    """
    folder = root / FOLDER
    there = _read(folder)
    host = _text(root / "etc/hostname").strip() or root.name
    wanted = _Installed(described or machine.named("lab").on(host), there.faults if there else ())
    same_library = _text(folder / ".digest") == library.digest() and (folder / "lib" / library.NAME).is_file()
    if same_library and there == wanted:
        return False
    if not same_library:
        library.build(folder / "lib")
        _replace(folder / ".digest", library.digest())
    _write(folder, wanted)
    return True


def inject(root: Path, name: str) -> None:
    """Break something; nothing happens when it is broken so already."""
    _change(root, name, lambda faults: (*faults, name) if name not in faults else faults)


def clear(root: Path, name: str) -> None:
    """Mend it; nothing happens when it is whole."""
    _change(root, name, lambda faults: tuple(fault for fault in faults if fault != name))


def active(root: Path) -> tuple[str, ...]:
    """The faults that are active in a root, in the order they came."""
    there = _read(root / FOLDER)
    return there.faults if there else ()


def _change(root: Path, name: str, change: Callable[[tuple[str, ...]], tuple[str, ...]]) -> None:
    if name not in FAULTS:
        raise ConfigError(
            Problem(what="no hardware fault of that name", found=name, expected=", ".join(sorted(FAULTS)))
        )
    there = _read(root / FOLDER)
    if there is None:
        raise PhaseFailed(
            Problem(
                what="there is no simulated hardware to break",
                found=f"no readable {root / FOLDER / 'gpus.json'}",
                fix="run `k3ctl lab create` again",
            )
        )
    _write(root / FOLDER, replace(there, faults=change(there.faults)))


def _read(folder: Path) -> _Installed | None:
    try:
        found = json.loads((folder / "gpus.json").read_text())
        healthy = machine.parse(json.dumps(found["machine"]), str(folder / "gpus.json"))
        return _Installed(healthy, tuple(name for name in found["faults"] if name in FAULTS))
    except (OSError, ValueError, KeyError, TypeError, ConfigError):
        return None  # not there, or from another version: installing writes it anew


def _write(folder: Path, state: _Installed) -> None:
    """machine.txt and the tree first: gpus.json, by which `install` knows that all is there, comes last."""
    shown = state.shown
    _replace(folder / "machine.txt", shown.nvml_text())
    wanted = sysfs.tree(shown)
    root = folder / "sys"
    for path, content in wanted.items():
        if path.endswith("/"):
            (root / path).mkdir(parents=True, exist_ok=True)
        else:
            _replace(root / path, content)
    devices = {path.split("/")[2] for path in wanted if path.startswith("class/infiniband/")}
    for stale in (root / "class/infiniband").iterdir():
        if stale.name not in devices:
            shutil.rmtree(stale)
    body = {"machine": json.loads(state.healthy.to_json()), "faults": list(state.faults)}
    _replace(folder / "gpus.json", json.dumps(body, indent=1) + "\n")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _replace(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(content)
    part.replace(path)
