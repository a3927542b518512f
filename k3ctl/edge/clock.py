"""The clock of this machine."""

from __future__ import annotations

import time


class SystemClock:
    """protocols.Clock."""

    def now(self) -> float:
        """Wall clock, seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """A clock that never goes back, seconds."""
        return time.monotonic()
