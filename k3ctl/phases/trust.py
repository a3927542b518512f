"""`k3ctl trust`: fetch the host keys, show them, and remember those that the user confirms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from k3ctl import fanout
from k3ctl.errors import ConfigError, K3ctlError, PhaseFailed, Problem, Unreachable

Kind = Literal["same", "new", "changed"]


@dataclass(frozen=True)
class ShownKey:
    """A public host key. `key` is base64, `fingerprint` as OpenSSH prints it (SHA256:...)."""

    keytype: str
    key: str
    fingerprint: str


@dataclass(frozen=True)
class Door:
    """One SSH server on the way to the nodes: a node, or a jump host (then `node` is empty). `id` is unique."""

    id: str
    node: str
    address: str
    port: int

    @property
    def label(self) -> str:
        """As people see it."""
        place = f"{self.address} port {self.port}"
        return f"{self.node} ({place})" if self.node else f"jump host {place}"

    def is_named(self, names: Iterable[str]) -> bool:
        """True when --replace names it, by node or by address."""
        return bool({self.node, self.address, f"{self.address}:{self.port}"} & set(names) - {""})


class HostKeys(Protocol):
    """Fetches and remembers host keys; the edge implements it."""

    def doors(self) -> Sequence[Sequence[Door]]:
        """The doors, nearest first: those of one group are reached through those of the groups before."""

    def known(self, door: Door) -> tuple[ShownKey, ...]:
        """The trusted keys of a door."""

    def fetch(self, door: Door) -> ShownKey:
        """The key that the door shows now. Raises Unreachable."""

    def remember(self, keys: Sequence[tuple[Door, ShownKey]]) -> None:
        """Trust these from now on, instead of earlier keys of the same doors. Atomic."""


@dataclass(frozen=True)
class Verdict:
    """What is to be done about one door's key."""

    door: Door
    kind: Kind
    seen: ShownKey
    known: tuple[ShownKey, ...] = ()

    @property
    def line(self) -> str:
        """One line for people."""
        text = f"{self.door.label}: {self.seen.keytype} {self.seen.fingerprint}"
        if self.kind == "same":
            return f"{text}, trusted already"
        if self.kind == "changed":
            return f"{text}, CHANGED, trusted is {' and '.join(key.fingerprint for key in self.known)}"
        return f"{text}, new"


@dataclass(frozen=True)
class Trusted:
    """What `trust` did."""

    added: tuple[Verdict, ...] = ()
    same: tuple[Verdict, ...] = ()

    @property
    def said(self) -> str:
        """One line."""
        if not self.added:
            return f"no change: {_keys(len(self.same))} trusted already"
        return f"{_keys(len(self.added))} trusted now, {len(self.same)} before"


def judge(door: Door, known: tuple[ShownKey, ...], seen: ShownKey) -> Verdict:
    """Compare what a door shows with what is trusted. A key of another type than the trusted ones is a changed key."""
    if seen.key in {key.key for key in known}:
        return Verdict(door, "same", seen, known)
    return Verdict(door, "changed" if known else "new", seen, known)


def trust(
    keys: HostKeys,
    *,
    ask: Callable[[str], bool],
    say: Callable[[str], None],
    yes: bool = False,
    replaced: Sequence[str] = (),
) -> Trusted:
    """Go from the nearest doors to the nodes, show every key, and remember what is confirmed.

    ask: a question to the user, False when there is nobody to answer. yes: trust on first use, said as such.
    replaced: nodes or addresses whose changed key may be accepted. Whatever was confirmed is kept even when other doors
    fail. Raises Unreachable or ConfigError with the problems of all doors, PhaseFailed when the user says no.
    """
    added: list[Verdict] = []
    same: list[Verdict] = []
    unreached: list[Problem] = []
    changed: list[Problem] = []
    groups = keys.doors()
    _known_names(groups, replaced)
    for group in groups:
        doors = {door.id: door for door in group}
        found = _look_all(keys, doors)
        verdicts = list(found.results.values())
        for verdict in verdicts:
            say(verdict.line)
        refused = [v for v in verdicts if v.kind == "changed" and not v.door.is_named(replaced)]
        fresh = [v for v in verdicts if v.kind != "same" and v not in refused]
        same += [v for v in verdicts if v.kind == "same"]
        if fresh:
            _confirm(fresh, ask, say, yes=yes)
            keys.remember([(v.door, v.seen) for v in fresh])
            added += fresh
        unreached += _of_doors(doors, found.errors)
        changed += [_changed(verdict) for verdict in refused]
    if unreached:
        raise Unreachable(*unreached, *changed)
    if changed:
        raise ConfigError(*changed)
    return Trusted(tuple(added), tuple(same))


def _look_all(keys: HostKeys, doors: Mapping[str, Door]) -> fanout.FanOut[Verdict]:
    return fanout.each(doors, lambda id: judge(doors[id], keys.known(doors[id]), keys.fetch(doors[id])))


def _confirm(fresh: Sequence[Verdict], ask: Callable[[str], bool], say: Callable[[str], None], *, yes: bool) -> None:
    changed = sum(1 for verdict in fresh if verdict.kind == "changed")
    note = f", {changed} of them instead of another one" if changed else ""
    if yes:
        say(f"trusting {_keys(len(fresh))} on first use{note}: nobody has compared them with the hosts (-y)")
    elif not ask(f"Trust {'this key' if len(fresh) == 1 else f'these {len(fresh)} keys'}{note}?"):
        raise PhaseFailed(
            Problem(
                what="the host keys were not confirmed",
                found="no",
                expected="yes, after comparing the fingerprints with the hosts' own",
                fix="compare them on each host's console (`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`) and run "
                "this again, or with -y to trust them unseen",
            )
        )


def _known_names(groups: Sequence[Sequence[Door]], replaced: Sequence[str]) -> None:
    """A mistyped --replace must not pass for done."""
    doors = [door for group in groups for door in group]
    wrong = [name for name in replaced if not any(door.is_named([name]) for door in doors)]
    if wrong:
        raise ConfigError(
            Problem(
                what="--replace names no host of this inventory",
                found=", ".join(wrong),
                expected="one of " + ", ".join(door.node or door.address for door in doors),
                fix="correct the name",
            )
        )


def _of_doors(doors: Mapping[str, Door], errors: Mapping[str, K3ctlError]) -> list[Problem]:
    return [
        replace(problem, node=problem.node or doors[id].node, phase="trust")
        for id, error in errors.items()
        for problem in error.problems
    ]


def _changed(verdict: Verdict) -> Problem:
    door = verdict.door
    return Problem(
        what="the host key has CHANGED: either the host was reinstalled, or somebody is in between",
        found=f"{door.address} port {door.port}: {verdict.seen.keytype} {verdict.seen.fingerprint}",
        expected=" or ".join(f"{key.keytype} {key.fingerprint}" for key in verdict.known),
        fix="compare it on the host's own console (`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`); "
        f"if it is right, run this again with `--replace {door.node or door.address}`",
        node=door.node,
        phase="trust",
    )


def _keys(count: int) -> str:
    return f"{count} key{'' if count == 1 else 's'}"
