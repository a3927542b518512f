"""`lab create`: the ordered list of what a lab is made of. Each step makes what is missing, so it can run again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from k3ctl import fanout, units
from k3ctl.lab import access, base, keys, lending, machine, network, outer, record, trust
from k3ctl.lab.definition import LabDefinition, LabHost
from k3ctl.lab.extras import Hardware, Hub
from k3ctl.lab.process import LabFailed
from k3ctl.lab.services import Services, services

_BOOT_SECONDS = 120.0

Say = Callable[[str], None]


@dataclass
class Steps:
    """Says each step with its seconds; `changed` collects the steps that made something."""

    say: Say
    changed: list[str] = field(default_factory=list)

    @contextmanager
    def step(self, name: str) -> Iterator[list[str]]:
        """Run one step; it appends what it did to the list. Nothing appended means no change."""
        began = time.monotonic()
        did: list[str] = []
        yield did
        took = units.duration(time.monotonic() - began)
        self.say(f"{name}: {', '.join(did) if did else 'no change'} ({took})")
        if did:
            self.changed.append(name)


def create(lab: LabDefinition, *, install: bool, say: Say) -> bool:
    """Make the lab, or what is missing of it. False when nothing was missing."""
    distribution = outer.require(install=install, say=say)
    with base.locked(lab.layout.lock, say, f"another command works on lab `{lab.name}`"):
        known = record.judge(lab, record.read(lab.layout))
        seen = network.look()
        problems = network.clashes(lab, seen)
        if problems:
            raise LabFailed(*problems)
        if not known:
            record.write_json(lab.layout.record, record.encode(lab))
        steps = Steps(say)
        user = trust.invokers()[-1]
        lent = lending.collect(distribution.codename, user.home)
        with steps.step("keys") as did:
            if keys.ensure(lab, user.uid, user.gid):
                did.append("made")
        with steps.step("base system") as did:
            root, built = base.ensure(distribution, lent, say)
            if built:
                did.append(f"built {root.name}")
        with steps.step("network") as did:
            made = network.ensure(lab, seen, say)
            did.extend(made)
        with steps.step("machines") as did:
            did.extend(_machines(lab, root, lent, made))
        _run_hub_and_wait(lab, root, steps)
        with steps.step("trust") as did:
            did.extend(trust.trust(lab))
        return bool(steps.changed)


def _machines(lab: LabDefinition, root: base.Base, lent: lending.Lent, anew: Collection[str]) -> list[str]:
    """Boot what does not run. `anew` names hosts whose network was made now: what runs there has lost its links."""
    kind = services()
    hardware = Hardware.find()

    def boot(name: str) -> bool:
        host = lab.host(name)
        if name in anew or not machine.mounted(lab.layout, name):
            kind.kill(machine.service(lab, host))
        made = machine.prepare(lab, host, root, lent)
        if hardware is not None:
            made |= hardware.install(lab, host)
        return _start(lab, host, kind) or made

    started = fanout.each([h.name for h in lab.hosts], boot).all()
    return [f"started {name}" for name, did in started.items() if did]


def _start(lab: LabDefinition, host: LabHost, kind: Services) -> bool:
    service = machine.service(lab, host)
    if kind.main_pid(service) is not None:
        return False
    kind.kill(service)  # what a killed supervisor may have left
    kind.start(service)
    record.forget_fault(lab.layout, host.name, "power-off")
    return True


def _run_hub_and_wait(lab: LabDefinition, root: base.Base, steps: Steps) -> None:
    """The machines boot while the hub's data is made."""
    hub = Hub.find(lab)
    with ThreadPoolExecutor(max_workers=1) as pool:
        waiting = pool.submit(_wait, lab, steps)
        if hub is not None:
            with steps.step("hub") as did:
                did.extend(hub.ensure(root, steps.say))
        waiting.result()


def _wait(lab: LabDefinition, steps: Steps) -> None:
    began = time.monotonic()

    def one(name: str) -> tuple[str, tuple[str, ...]]:
        return access.wait_running(lab, lab.host(name), timeout_s=_BOOT_SECONDS)

    states = fanout.each([h.name for h in lab.hosts], one).all()
    took = units.duration(time.monotonic() - began)
    text = ", ".join(f"{name} {state}" for name, (state, _) in states.items())
    steps.say(f"ready: {text} ({took})")
    for name, (_, failed) in states.items():
        if failed:
            steps.say(f"{name}: units that failed: {', '.join(failed)}")
