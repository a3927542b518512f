"""The stop flag: asked by everything that waits."""

from __future__ import annotations

import threading


class StopFlag:
    """Set once, never cleared. A child is also set by itself, without setting its parent."""

    def __init__(self, parent: StopFlag | None = None) -> None:
        self._event = threading.Event()
        self._children: list[StopFlag] = []
        self._guard = threading.Lock()
        if parent is not None:
            parent._adopt(self)

    def _adopt(self, child: StopFlag) -> None:
        with self._guard:
            self._children.append(child)
        if self.is_set():
            child.set()

    def set(self) -> None:
        """Ask everything that watches this flag or a child of it to stop."""
        self._event.set()
        with self._guard:
            children = tuple(self._children)
        for child in children:
            child.set()

    def is_set(self) -> bool:
        """True once asked to stop."""
        return self._event.is_set()

    def wait(self, timeout: float) -> bool:
        """Sleep up to `timeout` seconds; True at once when asked to stop."""
        return self._event.wait(timeout)
