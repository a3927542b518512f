"""Engine versions in order, and what a flag or variable is called in one of them. Pure."""

from __future__ import annotations

import re

from k3ctl.profiles.types import Change


def number(version: str) -> tuple[int, ...]:
    """'0.33.0' -> (0, 33, 0); letters after a number count as nothing: '0.5.16rc1' -> (0, 5, 16)."""
    return tuple(int(match[0]) for part in version.split(".") if (match := re.match(r"\d+", part)))


def at_least(version: str, first: str) -> bool:
    """True when `version` is `first` or later; 0.33 and 0.33.0 are the same."""
    return _padded(version) >= _padded(first)


def has(version: str, change: Change) -> bool:
    """True when that version knows the flag or variable by its own name."""
    since = not change.since or at_least(version, change.since)
    # `until` names a release: all of 0.32.x are not after 0.32.
    last = number(change.until) if change.until else ()
    return since and (not last or number(version)[: len(last)] <= last)


def _padded(version: str) -> tuple[int, ...]:
    parts = number(version)
    return parts + (0,) * (4 - len(parts))
