"""The architecture block of a model's profile as the type that the memory arithmetic works with. Pure."""

from __future__ import annotations

from k3ctl.errors import ConfigError, Problem
from k3ctl.memory.architecture import Architecture
from k3ctl.profiles.types import Draft, Model


def architecture(model: Model, draft: Draft | None = None) -> Architecture:
    """Sizes of a model; with a draft whose layers share the target's cache, those layers too.

    Raises ConfigError when the profile has no architecture.
    """
    data = model.architecture
    if data is None:
        raise ConfigError(
            Problem(
                what=f"the architecture of {model.name} is not known: its memory cannot be planned",
                key="model_facts.architecture",
                fix="name the model profile that it equals in model_facts.architecture of cluster.yml",
            )
        )
    shared = draft.layers if draft and draft.attention == "mla" else 0
    return Architecture(**data.model_dump(exclude={"source"}), draft_layers=shared)
