"""From an engine's last lines, the one that says why it ended."""

from __future__ import annotations

import re
from typing import List

ERROR = re.compile(
    r"(?:\b[A-Za-z_.]*(?:Error|Exception)\b\s*:)|\bFATAL\b|\bfatal error\b|died unexpectedly|out of memory|\bOOM\b"
    r"|Segmentation fault|core dumped|unrecognized arguments|Address already in use|No space left|Killed\b",
    re.IGNORECASE,
)
# Lines that only repeat that something else failed, or that end every run.
ECHO = re.compile(
    r"EngineDeadError|EngineCore encountered an issue|See (?:stack trace|root cause)|Failed core proc|"
    r"Traceback \(most recent call last\)|ChildFailedError|resource_tracker|leaked (?:semaphore|shared_memory)",
)
# "(Worker_TP1 pid=123) ERROR 11-30 22:29:45 [core.py:12] "
PREFIX = re.compile(
    r"^\s*(?:\([^)]{1,60}\)\s*)?(?:(?:ERROR|WARNING|INFO|CRITICAL)\s+\d\d-\d\d\s+[\d:]+\s+\[[^\]]*\]\s*)?"
)


def salient(lines: List[str]) -> str:
    """The first line of the last failure that names an error; falls back to an echo, then to nothing."""
    recent = lines[-120:]
    for line in recent:
        if ERROR.search(line) and not ECHO.search(line):
            return _clean(line)
    for line in recent:
        if ECHO.search(line) and ERROR.search(line):
            return _clean(line)
    return ""


def _clean(line: str) -> str:
    """Without the engine's own prefix of process, level, time and source line."""
    return PREFIX.sub("", line).strip()[:300]
