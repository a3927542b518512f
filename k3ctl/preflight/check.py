"""What a check is: a pure function from the facts to a verdict on one node, with a name and its place in the order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from k3ctl.facts.node import NodeFacts
from k3ctl.facts.pairs import PairFacts
from k3ctl.facts.section import Fact, Section
from k3ctl.plan import NodePlan, Plan
from k3ctl.preflight.finding import Severity

T = TypeVar("T")
F = TypeVar("F", bound=Fact)


class CouldNotTell(Exception):
    """A fact that the check needs is missing; the finding is `unknown` and says which."""


@dataclass(frozen=True)
class Verdict:
    """What a check says; the judge adds its name, the node and why it matters."""

    severity: Severity
    found: str
    expected: str = ""
    fix: str = ""
    evidence: str = ""


@dataclass(frozen=True)
class Case:
    """Everything one verdict may look at.

    `others` are the facts of the other nodes that are judged. `stands(check, node)` says whether an earlier check of
    another node passed, so that one node's trouble is not reported by all its peers too.
    """

    plan: Plan
    node: NodePlan
    facts: NodeFacts
    others: Mapping[str, NodeFacts]
    pairs: PairFacts
    stands: Callable[[str, str], bool]


@dataclass(frozen=True)
class Check:
    """One check. `scope`: what it looks at (this node, this node towards each peer, this node among all nodes).

    `needs` are checks that must have passed on the same node, `reads` the sections of the facts that it uses: when a
    ground is missing the check is skipped with that reason. `why` says what goes wrong when this is ignored.
    """

    name: str
    title: str
    scope: Literal["node", "pair", "cluster"]
    why: str
    judge: Callable[[Case], Verdict]
    needs: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


def value(section: Section[F], name: str) -> F:
    """The values of a section; CouldNotTell when there are none."""
    if section.value is None:
        raise CouldNotTell(f"{name}: {section.error or 'nothing was said'}")
    return section.value


def known(found: T | None, what: str) -> T:
    """A fact that must be there; CouldNotTell when the node could not tell it."""
    if found is None:
        raise CouldNotTell(f"the node could not tell {what}")
    return found


def ok(found: str, expected: str = "", evidence: str = "") -> Verdict:
    """As it should be."""
    return Verdict("ok", found, expected, evidence=evidence)


def warn(found: str, expected: str, fix: str, evidence: str = "") -> Verdict:
    """Works, with a risk or a loss."""
    return Verdict("warn", found, expected, fix, evidence)


def fail(found: str, expected: str, fix: str, evidence: str = "") -> Verdict:
    """The launch would fail or give wrong results."""
    return Verdict("fail", found, expected, fix, evidence)


def not_needed(reason: str) -> Verdict:
    """The check does not apply to this plan or node."""
    return Verdict("skipped", reason)
