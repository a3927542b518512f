"""`lab destroy`: kill, unmount, remove; everything by the lab's prefix or below its folder, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from k3ctl import fanout
from k3ctl.errors import Problem
from k3ctl.lab import base, machine, network, outer, record, trust
from k3ctl.lab.definition import LabDefinition, load
from k3ctl.lab.layout import CACHE_ROOT, STATE_ROOT, Layout
from k3ctl.lab.process import LabFailed, must, run
from k3ctl.lab.services import Service, services

Say = Callable[[str], None]


def target(path: str) -> LabDefinition:
    """The lab that `path` means: as recorded, else as its inventory says. ConfigError when there is neither.

    A name belongs to the inventory that made it, as long as that inventory exists.
    """
    folder = Path(path).resolve()
    known = record.read(Layout(folder.name, folder))
    if known is None:
        return load(folder)
    if known.layout.inventory != folder and known.layout.inventory.is_dir():
        raise LabFailed(
            Problem(
                what=f"lab `{known.name}` was made from another inventory",
                found=str(known.layout.inventory),
                expected=str(folder),
                fix=f"`k3ctl lab destroy {known.layout.inventory}`",
            )
        )
    return known


def destroy(lab: LabDefinition, say: Say) -> bool:
    """Remove the lab; False when there was nothing."""
    outer.require_root()
    with base.locked(lab.layout.lock, say, f"another command works on lab `{lab.name}`"):
        _kill(lab)
        _remove_traces(lab)
        removed = network.remove(lab, network.look())
        machine.unmount_all(lab.layout, say)
        removed |= bool(trust.distrust(lab))
        if lab.layout.state.is_dir():
            must(run, ["rm", "-rf", "--one-file-system", str(lab.layout.state)], timeout_s=300)
            removed = True
        if STATE_ROOT.is_dir():
            network.close_forwarding(say)
            if not any(STATE_ROOT.iterdir()):
                STATE_ROOT.rmdir()
        lab.layout.lock.unlink(missing_ok=True)
    return removed


def _kill(lab: LabDefinition) -> None:
    """All machines and the hub at once."""
    kind = services()
    hub = Service(f"{lab.layout.prefix}-hub", (), lab.layout.hub / "service", lab.layout.hub / "hub.log")
    found = {h.name: machine.service(lab, h) for h in lab.hosts} | {" hub": hub}
    fanout.each(found, lambda name: kind.kill(found[name])).all()


def _remove_traces(lab: LabDefinition) -> None:
    """A killed systemd-nspawn leaves two things in /run: a folder, and a lock named by the root's device and inode."""
    folder = Path("/run/systemd/nspawn")
    for host in lab.hosts:
        must(run, ["rm", "-rf", "--one-file-system", str(folder / "propagate" / lab.layout.unit(host.name))])
        root = lab.layout.machine(host.name) / "root"
        if root.is_dir():
            seen = root.stat()
            (folder / "locks" / f"inode-{seen.st_dev}:{seen.st_ino}").unlink(missing_ok=True)


def purge_cache() -> bool:
    """Remove base systems and serving environments of all labs; refused while a lab is there."""
    labs = sorted(p.name for p in STATE_ROOT.iterdir() if p.is_dir()) if STATE_ROOT.is_dir() else []
    if labs:
        raise LabFailed(
            Problem(what="the cache is in use", found=f"labs {', '.join(labs)}", fix="destroy those labs first")
        )
    if not CACHE_ROOT.is_dir():
        return False
    must(run, ["rm", "-rf", "--one-file-system", str(CACHE_ROOT)], timeout_s=300)
    return True
