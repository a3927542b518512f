"""The Range header (RFC 9110, section 14): which bytes of a file an answer carries."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ONE_RANGE = re.compile(r"bytes=\s*(\d*)\s*-\s*(\d*)\s*")


@dataclass(frozen=True)
class Span:
    """Bytes `first` up to and including `last` of a file of `size` bytes; `status` is 200, 206 or 416."""

    status: int
    first: int
    last: int
    size: int

    @property
    def length(self) -> int:
        """How many bytes the body has."""
        return 0 if self.status == 416 else self.last - self.first + 1

    @property
    def content_range(self) -> str:
        """Value of Content-Range; empty for a whole file."""
        if self.status == 416:
            return f"bytes */{self.size}"
        return f"bytes {self.first}-{self.last}/{self.size}" if self.status == 206 else ""


def select(header: str | None, size: int, *, etag: str = "", if_range: str | None = None) -> Span:
    """The bytes that a request gets.

    Several ranges, other units and broken headers get the whole file, as servers may do; so does an `If-Range` that
    names another content. A range that begins behind the end is 416.
    """
    whole = Span(200, 0, size - 1, size)
    if header is None or (if_range is not None and if_range != etag):
        return whole
    match = _ONE_RANGE.fullmatch(header)
    if match is None or match.group(1, 2) == ("", ""):
        return whole
    first_text, last_text = match.group(1, 2)
    if not first_text:
        count = int(last_text)
        return Span(206, max(0, size - count), size - 1, size) if count and size else Span(416, 0, 0, size)
    first = int(first_text)
    last = min(int(last_text), size - 1) if last_text else size - 1
    if last_text and int(last_text) < first:
        return whole
    return Span(206, first, last, size) if first < size else Span(416, 0, 0, size)
