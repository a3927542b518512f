"""`lab fault`: inject and clear faults, and remember which are active."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from k3ctl.errors import ConfigError, Problem
from k3ctl.lab import access, base, machine, outer, record
from k3ctl.lab.definition import LabDefinition, LabHost
from k3ctl.lab.extras import Hardware
from k3ctl.lab.faults import CATALOGUE, Fault, Options, Step, chosen
from k3ctl.lab.process import LabFailed, Runner, run, tail
from k3ctl.lab.services import services

Say = Callable[[str], None]


def _no_steps(_lab: LabDefinition, _host: LabHost, _options: Options) -> list[Step]:
    return []


# made by killing the machine, not by commands
POWER_OFF = Fault("power-off", "the machine is switched off hard; --clear boots it", _no_steps, _no_steps)


def catalogue() -> Mapping[str, Fault]:
    """All faults that this installation can make, by name."""
    found = {**CATALOGUE, POWER_OFF.name: POWER_OFF}
    hardware = Hardware.find()
    if hardware is not None:
        found |= {name: Fault(name, title, _no_steps, _no_steps) for name, title in hardware.faults().items()}
    return found


def find(name: str) -> Fault:
    """The fault of that name; ConfigError that lists the names when there is none."""
    faults = catalogue()
    if name not in faults:
        raise ConfigError(Problem(what=f"no fault `{name}`", found=name, expected=", ".join(sorted(faults))))
    return faults[name]


def inject(lab: LabDefinition, host: LabHost, name: str, given: Options, say: Say, runner: Runner = run) -> bool:
    """Make a fault; False when it is active already. It is recorded first, so that a crash leaves it clearable."""
    outer.require_root()
    fault = find(name)
    options = chosen(fault, given, lab, host)
    with base.locked(lab.layout.lock, say, f"another command works on lab `{lab.name}`"):
        active = record.faults(lab.layout)
        key = identity(host, fault, options)
        if key in active:
            return False
        active[key] = {"node": host.name, "name": fault.name, "options": options}
        record.write_json(lab.layout.faults, active)
        try:
            _perform(lab, host, fault.make(lab, host, options), runner)
            _special(lab, host, fault, active=True)
        except LabFailed:
            _perform(lab, host, fault.undo(lab, host, options), runner, strict=False)
            record.write_json(lab.layout.faults, {k: v for k, v in active.items() if k != key})
            raise
    return True


def clear(lab: LabDefinition, host: LabHost, name: str, given: Options, say: Say, runner: Runner = run) -> list[str]:
    """Take back every active fault of that name on that machine (with those options); what was cleared."""
    outer.require_root()
    fault = find(name)
    cleared = []
    with base.locked(lab.layout.lock, say, f"another command works on lab `{lab.name}`"):
        active = record.faults(lab.layout)
        for key, found in list(active.items()):
            options = found["options"]
            if (found["node"], found["name"]) != (host.name, name) or not given.items() <= options.items():
                continue
            _perform(lab, host, fault.undo(lab, host, options), runner)
            _special(lab, host, fault, active=False)
            del active[key]
            record.write_json(lab.layout.faults, active)
            cleared.append(key)
    return cleared


def identity(host: LabHost, fault: Fault, options: Options) -> str:
    """What makes a fault one: machine, name and options."""
    return " ".join([host.name, fault.name, *(f"{k}={v}" for k, v in sorted(options.items()))])


def _perform(lab: LabDefinition, host: LabHost, steps: list[Step], runner: Runner, *, strict: bool = True) -> None:
    for step in steps:
        if step.where == "outer":
            ended = runner(step.argv, timeout_s=15)
        else:
            ended = access.ask(lab, host, step.argv, timeout_s=15, runner=runner)
        if strict and not ended.ok:
            raise LabFailed(
                Problem(
                    what=f"`{' '.join(step.argv)}` failed",
                    found=f"exit status {ended.status}",
                    node=host.name,
                    fix="if the machine is down, `k3ctl lab create` boots it" if ended.status == 255 else "",
                    evidence=tail(ended.stderr or ended.stdout),
                )
            )


def _special(lab: LabDefinition, host: LabHost, fault: Fault, *, active: bool) -> None:
    hardware = Hardware.find()
    if fault is POWER_OFF:
        kind, service = services(), machine.service(lab, host)
        if active:
            kind.kill(service)
        elif kind.main_pid(service) is None:
            kind.start(service)
            access.wait_running(lab, host, timeout_s=120)
    elif hardware is not None and fault.name in hardware.faults():
        hardware.fault(lab, host, fault.name, active=active)
