"""The nearest known name to a mistyped one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The known name most like `name`, or an empty text when none is near."""
    matches = get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return matches[0] if matches else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A fix for an unknown name: the nearest known one, or the advice to remove it."""
    match = nearest(name, known)
    return f"did you mean `{match}`?" if match else "remove it or correct its name"
