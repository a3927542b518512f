"""The request log: one JSON object a line, so that tests can prove what was fetched, by whom and how often."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Served:
    """One request as it went. `bytes` are body bytes that left; `leak` marks a token sent to the content network."""

    at: float
    server: str  # hub | cdn
    client: str
    method: str
    path: str
    range: str
    status: int
    bytes: int
    seconds: float
    had_authorization: bool
    leak: bool = False
    fault: str = ""
    broken: bool = False  # the client went away, or a fault cut the body
    agent: str = ""


class RequestLog:
    """Appends lines to a file, or keeps nothing when there is none. Thread-safe."""

    def __init__(self, file: Path | None) -> None:
        self._lock = threading.Lock()
        self._out = file.open("a", buffering=1) if file is not None else None

    def write(self, served: Served) -> None:
        """Add one line."""
        if self._out is not None:
            line = json.dumps(asdict(served), separators=(",", ":"))
            with self._lock:
                self._out.write(line + "\n")

    def close(self) -> None:
        """Close the file."""
        if self._out is not None:
            self._out.close()
