"""What a stage says about itself: status.json for whoever asks, events.jsonl for afterwards. Both stay small."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections import deque
from typing import Any, Deque, Dict, List, Tuple

from k3ctl.node.stagefolder import Folder, now_text

ROTATE_BYTES = 1 << 20
RATE_WINDOW_S = 30.0


class StageLog:
    """Events of one stage: appended to events.jsonl (one older file is kept), the last few kept for the status."""

    def __init__(self, folder: Folder) -> None:
        self._path = folder.own("events.jsonl")
        self._old = folder.own("events.1.jsonl")
        self._lock = threading.Lock()
        self.recent: Deque[str] = deque(maxlen=8)
        self.retries = 0

    def event(self, code: str, text: str, **more: Any) -> None:
        """One thing that happened; `code` is stable, `text` is for people."""
        line = json.dumps(dict(more, at=now_text(), code=code, text=text), sort_keys=True)
        with self._lock:
            self.recent.append("%s %s" % (now_text()[11:19], text))
            with contextlib.suppress(OSError):  # a full disk must not end the work through its log
                if os.path.exists(self._path) and os.path.getsize(self._path) > ROTATE_BYTES:
                    os.replace(self._path, self._old)
                with open(self._path, "a", encoding="utf-8") as file:
                    file.write(line + "\n")
        sys.stderr.write("%s: %s\n" % (code, text))

    def retry(self, text: str, **more: Any) -> None:
        """A fault that is tried again."""
        with self._lock:
            self.retries += 1
        self.event("retry", text, **more)


class Meter:
    """Bytes received, and their rate over the last half minute."""

    def __init__(self) -> None:
        self.total = 0
        self.last_byte = time.monotonic()
        self.begun = self.last_byte
        self._lock = threading.Lock()
        self._points: Deque[Tuple[float, int]] = deque([(self.begun, 0)])

    def add(self, count: int) -> None:
        """Bytes came."""
        with self._lock:
            self.total += count
            self.last_byte = time.monotonic()

    def rate(self) -> float:
        """Bytes per second; call it now and then (it takes the points to measure between)."""
        with self._lock:
            now = time.monotonic()
            self._points.append((now, self.total))
            while len(self._points) > 2 and now - self._points[0][0] > RATE_WINDOW_S:
                self._points.popleft()
            since, before = self._points[0]
            return (self.total - before) / (now - since) if now > since else 0.0


def tail(path: str, count: int) -> List[str]:
    """The last lines of an events file, as text for people."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 16384))
            lines = file.read().decode("utf-8", "replace").splitlines()[-count:]
    except OSError:
        return []
    return [_shown(line) for line in lines]


def _shown(line: str) -> str:
    try:
        event: Dict[str, Any] = json.loads(line)
        return "%s %s: %s" % (event["at"], event["code"], event["text"])
    except (ValueError, KeyError, TypeError):
        return line
