"""`k3ctl trust`: what is shown, asked and remembered; with a fake and with real servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from k3ctl.edge.keyscan import KeyScan
from k3ctl.errors import ConfigError, PhaseFailed, Problem, Unreachable
from k3ctl.phases.trust import Door, ShownKey, judge, trust
from k3ctl.protocols import Command
from tests.local.sshd_fixtures import ME, Farm, cluster_of, farm, free_port

__all__ = ["farm"]

OLD = ShownKey("ssh-ed25519", "b2xk", "SHA256:old")
NEW = ShownKey("ssh-ed25519", "bmV3", "SHA256:new")
D1, D2 = Door("1", "n1", "10.0.0.1", 22), Door("2", "n2", "10.0.0.2", 2222)
JUMP = Door("j", "", "10.0.0.9", 22)


@dataclass
class Keys:
    """A fake of the edge; asking for a door it does not know is an error of the test."""

    shown: dict[str, ShownKey | Unreachable]
    trusted: dict[str, tuple[ShownKey, ...]] = field(default_factory=dict)
    groups: Sequence[Sequence[Door]] = ((D1, D2),)

    def doors(self) -> Sequence[Sequence[Door]]:
        return self.groups

    def known(self, door: Door) -> tuple[ShownKey, ...]:
        return self.trusted.get(door.id, ())

    def fetch(self, door: Door) -> ShownKey:
        seen = self.shown[door.id]
        if isinstance(seen, Unreachable):
            raise seen
        return seen

    def remember(self, keys: Sequence[tuple[Door, ShownKey]]) -> None:
        for door, key in keys:
            self.trusted[door.id] = (key,)


class User:
    """Answers questions and remembers them."""

    def __init__(self, answer: bool) -> None:
        self.answer = answer
        self.asked: list[str] = []
        self.heard: list[str] = []

    def ask(self, question: str) -> bool:
        self.asked.append(question)
        return self.answer


def test_verdicts() -> None:
    assert judge(D1, (), NEW).kind == "new"
    assert judge(D1, (NEW,), NEW).kind == "same"
    assert judge(D1, (OLD, NEW), NEW).kind == "same"
    assert judge(D1, (OLD,), NEW).kind == "changed"
    assert judge(D1, (ShownKey("ssh-rsa", "cnNh", "SHA256:rsa"),), NEW).kind == "changed"


def test_new_keys_are_shown_and_asked_for() -> None:
    keys, user = Keys({"1": NEW, "2": NEW}), User(answer=True)
    out = trust(keys, ask=user.ask, say=user.heard.append)
    assert user.heard == [
        "n1 (10.0.0.1 port 22): ssh-ed25519 SHA256:new, new",
        "n2 (10.0.0.2 port 2222): ssh-ed25519 SHA256:new, new",
    ]
    assert user.asked == ["Trust these 2 keys?"]
    assert out.said == "2 keys trusted now, 0 before"
    assert keys.trusted == {"1": (NEW,), "2": (NEW,)}
    again = trust(keys, ask=user.ask, say=user.heard.append)
    assert again.said == "no change: 2 keys trusted already"
    assert len(user.asked) == 1


def test_no_is_no() -> None:
    keys, user = Keys({"1": NEW, "2": NEW}), User(answer=False)
    with pytest.raises(PhaseFailed):
        trust(keys, ask=user.ask, say=user.heard.append)
    assert keys.trusted == {}


def test_yes_says_that_it_trusts_on_first_use() -> None:
    keys, user = Keys({"1": NEW, "2": NEW}), User(answer=False)
    trust(keys, ask=user.ask, say=user.heard.append, yes=True)
    assert user.asked == []
    assert "on first use" in user.heard[-1]
    assert keys.trusted


def test_a_changed_key_needs_its_name() -> None:
    keys, user = Keys({"1": NEW, "2": NEW}, {"1": (OLD,)}), User(answer=True)
    with pytest.raises(ConfigError) as caught:
        trust(keys, ask=user.ask, say=user.heard.append, yes=True)
    (problem,) = caught.value.problems
    assert (problem.node, problem.expected) == ("n1", "ssh-ed25519 SHA256:old")
    assert "--replace n1" in problem.fix
    assert keys.trusted == {"1": (OLD,), "2": (NEW,)}, "the other one is kept"
    trust(keys, ask=user.ask, say=user.heard.append, replaced=["n1"])
    assert user.asked == ["Trust this key, 1 of them instead of another one?"]
    assert keys.trusted["1"] == (NEW,)


@pytest.mark.parametrize("name", ["n2", "10.0.0.2", "10.0.0.2:2222"])
def test_replace_takes_nodes_and_addresses(name: str) -> None:
    keys, user = Keys({"1": NEW, "2": NEW}, {"1": (NEW,), "2": (OLD,)}), User(answer=True)
    trust(keys, ask=user.ask, say=user.heard.append, replaced=[name])
    assert keys.trusted["2"] == (NEW,)


def test_a_mistyped_replace_is_an_error() -> None:
    user = User(answer=True)
    with pytest.raises(ConfigError) as caught:
        trust(Keys({"1": NEW, "2": NEW}), ask=user.ask, say=user.heard.append, replaced=["n3"])
    assert caught.value.problems[0].expected == "one of n1, n2"


def test_one_dead_host_does_not_keep_the_others_away() -> None:
    keys, user = Keys({"1": NEW, "2": Unreachable(Problem(what="dead"))}), User(answer=True)
    with pytest.raises(Unreachable) as caught:
        trust(keys, ask=user.ask, say=user.heard.append)
    assert [(p.node, p.what, p.phase) for p in caught.value.problems] == [("n2", "dead", "trust")]
    assert keys.trusted == {"1": (NEW,)}


def test_the_jump_host_comes_first() -> None:
    keys, user = Keys({"1": NEW, "j": NEW}, groups=((JUMP,), (D1,))), User(answer=True)
    trust(keys, ask=user.ask, say=user.heard.append)
    assert user.heard[0].startswith("jump host 10.0.0.9 port 22: ")
    assert user.asked == ["Trust this key?", "Trust this key?"]


def test_real_hosts_through_a_jump_host(farm: Farm) -> None:
    jump, one, two = farm.sshd(trusted=False), farm.sshd(trusted=False), farm.sshd(trusted=False)
    hop = (f"{ME}@127.0.0.1:{jump.port}",)
    targets = (one.target(jump=hop), two.target(jump=hop))
    scan, user = KeyScan(cluster_of(*targets), farm.state, home=farm.home), User(answer=True)
    out = trust(scan, ask=user.ask, say=user.heard.append)
    scan.close()
    assert len(out.added) == 3
    assert jump.known().fingerprint in user.heard[0]
    assert user.asked == ["Trust this key?", "Trust these 2 keys?"]
    remote = farm.remote(*targets)
    assert remote.run("n2", Command(("echo", "in"))).stdout == "in\n"


def test_real_keys_that_change_and_other_types(farm: Farm) -> None:
    server = farm.sshd()
    scan, user = KeyScan(cluster_of(server.target()), farm.state, home=farm.home), User(answer=True)
    assert trust(scan, ask=user.ask, say=user.heard.append).said == "no change: 1 key trusted already"
    server.stop()
    server.renew_host_key()
    server.start()
    with pytest.raises(ConfigError):
        trust(scan, ask=user.ask, say=user.heard.append, yes=True)
    trust(scan, ask=user.ask, say=user.heard.append, replaced=["n1"])
    assert farm.remote(server.target()).run("n1", Command(("true",))).ok


def test_a_real_dead_port(farm: Farm) -> None:
    good, user = farm.sshd(trusted=False), User(answer=True)
    targets = (good.target(), good.target(port=free_port()))
    scan = KeyScan(cluster_of(*targets), farm.state, home=farm.home)
    with pytest.raises(Unreachable) as caught:
        trust(scan, ask=user.ask, say=user.heard.append)
    assert [(p.node, p.what) for p in caught.value.problems] == [("n2", "the host refuses the connection")]
    assert len(farm.state.joinpath("known_hosts").read_text().splitlines()) == 1
