"""Sizes and times as people read them."""

from __future__ import annotations

import pytest

from k3ctl.units import duration, rate, size


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (14_200_000, "14.2 MB"), (1_560_936_091_448, "1.561 TB")],
)
def test_size(count: int, text: str) -> None:
    assert size(count) == text


def test_rate() -> None:
    assert rate(1.21e9) == "1.2 GB/s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (59.4, "59 s"), (65, "1m05s"), (5400, "1h30m"), (3599.9, "1h00m")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
