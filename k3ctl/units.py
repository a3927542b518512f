"""Sizes, rates and times as people read them. Decimal units (1 GB = 10^9 bytes), as disks and links are sold."""

from __future__ import annotations

_STEPS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def size(count: float) -> str:
    """Bytes as text: 1560936091448 -> '1.561 TB', 512 -> '512 B'."""
    for name, factor in _STEPS:
        if count >= factor:
            value = count / factor
            return f"{value:.3f} {name}" if name == "TB" else f"{value:.1f} {name}"
    return f"{int(count)} B"


def rate(bytes_per_second: float) -> str:
    """Bytes per second as text: 1.2e9 -> '1.2 GB/s'."""
    return f"{size(bytes_per_second)}/s"


def duration(seconds: float) -> str:
    """Seconds as text: 0.4 -> '0.4 s', 65 -> '1m05s', 5400 -> '1h30m'."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m"
