"""A model's profile together with what cluster.yml says in place of facts that nobody has published. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from k3ctl.cluster import ModelFacts
from k3ctl.errors import ConfigError, Problem
from k3ctl.nearest import nearest
from k3ctl.profiles.types import Amount, Model, Unknown

SECTION = "model_facts"


def supplied(model: Model, facts: ModelFacts, models: Mapping[str, Model], file: str = "cluster.yml") -> Model:
    """The model with every unknown that `facts` gives filled in; `file` is shown as their source.

    Raises ConfigError: a fact that differs from the profile's own, and an architecture of a model that is not there.
    """
    problems: list[Problem] = []
    changes: dict[str, Any] = {}
    for name in ("bytes", "shards", "heads", "max_model_len"):
        given = getattr(facts, name)
        if given is None:
            continue
        there = getattr(model, name)
        if isinstance(there, Unknown):
            changes[name] = Amount(value=given, source=f"{SECTION}.{name} of {file}", status="unverified")
        elif there.value != given:
            problems.append(_conflict(model, name, str(given), f"{there.value} ({there.source})", file))
    if facts.architecture is not None:
        other = models.get(facts.architecture)
        if model.architecture is not None:
            if other is None or other.architecture != model.architecture:
                found = model.architecture.source
                problems.append(_conflict(model, "architecture", facts.architecture, f"its own ({found})", file))
        elif other is None or other.architecture is None:
            problems.append(_no_architecture(facts.architecture, models, file))
        else:
            changes["architecture"] = other.architecture
    if problems:
        raise ConfigError(*problems)
    return model.model_copy(update=changes)


def _conflict(model: Model, name: str, given: str, known: str, file: str) -> Problem:
    return Problem(
        what=f"two sources disagree about {name} of {model.name}: {file} and the model's profile",
        file=file,
        key=f"{SECTION}.{name}",
        found=given,
        expected=known,
        fix="remove the line, or correct the profile",
    )


def _no_architecture(name: str, models: Mapping[str, Model], file: str) -> Problem:
    known = sorted(other.name for other in models.values() if other.architecture)
    near = nearest(name, known)
    return Problem(
        what="no model profile of that name has an architecture",
        file=file,
        key=f"{SECTION}.architecture",
        found=name,
        expected="one of " + ", ".join(known),
        fix=f"did you mean `{near}`?" if near else "",
    )
