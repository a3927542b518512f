"""A secret whose printed form is `***`."""

from __future__ import annotations


class Secret:
    """Text that must not be shown. `reveal()` is the only way to it, so that every use can be found by name."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself: for file contents of mode 0600, HTTP headers and stdin, never for argv or logs."""
        return self._text

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)
