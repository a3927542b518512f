"""Log files of a rank: one per attempt, every line with its time and stream, bounded in number and bytes.

`attempt-<UTC stamp>.log`, and `attempt-<UTC stamp>.p2.log` and so on when one grows too long; `current.log` links to
the newest. A line is `2026-11-30T22:29:45.546Z O text`, stream O (stdout), E (stderr) or K (said by k3ctl).
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import threading
import time
from typing import IO, List, NamedTuple, Optional

NAME = re.compile(r"^attempt-(\d{8}T\d{6}Z(?:-\d+)?)(?:\.p(\d+))?\.log$")
LINE = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) ([OEK]) ?(.*)$")
MAX_LINE = 16384
REDRAW_S = 1.0  # progress bars redraw many times a second; one of them is kept


class LogFile(NamedTuple):
    """One file: the attempt's stamp and the part, counted from 1."""

    stamp: str
    part: int
    path: str


def stamp_now() -> str:
    """UTC time as used in file names."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())


def when(seconds: float) -> str:
    """Epoch seconds as UTC text with milliseconds."""
    whole = int(seconds)
    return "%s.%03dZ" % (time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)), int((seconds - whole) * 1000))


def files(folder: str) -> List[LogFile]:
    """All log files of a rank, oldest first."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    found = []
    for name in names:
        match = NAME.match(name)
        if match:
            found.append(LogFile(match.group(1), int(match.group(2) or 1), os.path.join(folder, name)))
    return sorted(found)


class LogLine(NamedTuple):
    """One line: UTC time, stream (O, E, K), text."""

    ts: str
    stream: str
    text: str


def split(line: str) -> LogLine:
    """A line of a log file as (ts, stream, text); what is not in our form is all text."""
    match = LINE.match(line)
    return LogLine(match.group(1), match.group(2), match.group(3)) if match else LogLine("", "K", line)


def tail(folder: str, count: int, stamp: str = "") -> List[LogLine]:
    """The last lines of one attempt (the newest when `stamp` is empty), oldest first."""
    all_files = files(folder)
    if not all_files:
        return []
    stamp = stamp or all_files[-1].stamp
    found: List[LogLine] = []
    for file in reversed([f for f in all_files if f.stamp == stamp]):
        found = [split(text) for text in _last(file.path, count - len(found))] + found
        if len(found) >= count:
            break
    return found


def _last(path: str, count: int, block: int = 262144) -> List[str]:
    if count <= 0:
        return []
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - block))
            texts = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return []
    if size > block:
        texts = texts[1:]
    return [text for text in texts if text][-count:]


class AttemptLog:
    """Writes one attempt's lines. Thread-safe; a full disk loses lines, it never stops the engine."""

    def __init__(self, folder: str, keep: int, max_bytes: int) -> None:
        os.makedirs(folder, mode=0o755, exist_ok=True)
        self.folder, self.keep, self.max_bytes = folder, keep, max_bytes
        self.stamp = self._free_stamp()
        self.part = 0
        self.recent: List[str] = []
        self.secrets: List[str] = []  # never written: SGLang logs its whole configuration, API key and all
        self._lock = threading.Lock()
        self._file: Optional[IO[bytes]] = None
        self._bytes = 0
        self._open()

    def _free_stamp(self) -> str:
        stamp, taken = stamp_now(), {f.stamp for f in files(self.folder)}
        number, name = 1, stamp
        while name in taken:
            number += 1
            name = "%s-%d" % (stamp, number)
        return name

    def _open(self) -> None:
        self.part += 1
        part = "" if self.part == 1 else ".p%d" % self.part
        self.name = "attempt-%s%s.log" % (self.stamp, part)
        if self._file is not None:
            self._file.close()
        self._file = open(os.path.join(self.folder, self.name), "ab", buffering=0)  # noqa: SIM115 - held over calls
        self._bytes = 0
        link = os.path.join(self.folder, "current.log")
        beside = "%s.%d" % (link, os.getpid())
        os.symlink(self.name, beside)
        os.replace(beside, link)
        self._prune()

    def _prune(self) -> None:
        """Drop the oldest files beyond the number to keep, never one of this attempt's newest part."""
        for old in files(self.folder)[: -self.keep]:
            with contextlib.suppress(OSError):
                os.unlink(old.path)

    def write(self, stream: str, text: str) -> None:
        """Add one line."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        text = text[:MAX_LINE]
        line = ("%s %s %s\n" % (when(time.time()), stream, text)).encode("utf-8", "replace")
        with self._lock:
            if self._file is None:
                return
            if stream != "K" and text.strip():
                self.recent.append(text)
                del self.recent[:-200]
            try:
                if self._bytes and self._bytes + len(line) > self.max_bytes:
                    self._open()
                self._file.write(line)
                self._bytes += len(line)
            except OSError:
                pass

    def pump(self, source: IO[bytes], stream: str) -> None:
        """Copy a pipe to the log until it ends; carriage returns end a line too, redraws are thinned out."""
        splitter = Splitter()
        descriptor = source.fileno()
        while True:
            if not select.select([descriptor], [], [], REDRAW_S)[0]:
                lines = splitter.idle(time.monotonic())
                block = b"-"
            else:
                block = _read(descriptor)
                lines = splitter.feed(block, time.monotonic())
            for line in lines:
                self.write(stream, line.decode("utf-8", "replace"))
            if not block:
                return

    def close(self) -> None:
        """Close the file; later writes are dropped."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


class Splitter:
    """Cuts bytes into lines at LF, CR LF and CR. Of a progress bar one redraw a second is kept, and the last."""

    def __init__(self) -> None:
        self.rest = b""
        self.held = b""  # a redraw that was not written yet
        self.shown = b""  # the redraw that was written last
        self.redrawing = False  # what is in `rest` came after a carriage return
        self.drawn = float("-inf")

    def feed(self, block: bytes, now: float) -> List[bytes]:
        """Lines that are complete; an empty block means that nothing more comes. `now` is monotonic seconds."""
        found: List[bytes] = []
        self.rest += block
        while True:
            positions = [p for p in (self.rest.find(b"\n"), self.rest.find(b"\r")) if p >= 0]
            # A \r at the very end may be half of a \r\n.
            if not positions or (block and min(positions) == len(self.rest) - 1 and self.rest.endswith(b"\r")):
                break
            cut = min(positions)
            line, end, self.rest = self.rest[:cut], self.rest[cut : cut + 1], self.rest[cut + 1 :]
            if end == b"\r" and not self.rest.startswith(b"\n"):
                found += self._redraw(line, now)
                continue
            if end == b"\r":
                self.rest = self.rest[1:]
            found += self._last_words(line or self.held)
        if len(self.rest) > MAX_LINE or not block:
            for text in (self.held, self.rest):
                found += self._last_words(text)
            self.rest = b""
        return found

    def idle(self, now: float) -> List[bytes]:
        """Nothing came for a while: show where the progress bar stands, though its line has not ended."""
        text = self.held
        if self.rest.endswith(b"\r"):
            text, self.rest, self.redrawing = self.rest[:-1], b"", True
        elif self.redrawing and self.rest:
            text = self.rest
        if not text or text == self.shown:
            return []
        self.held, self.shown, self.drawn = b"", text, now
        return [text]

    def _redraw(self, line: bytes, now: float) -> List[bytes]:
        self.redrawing = True
        if not line or line == self.shown:
            return []
        if now - self.drawn < REDRAW_S:
            self.held = line
            return []
        self.held, self.shown, self.drawn = b"", line, now
        return [line]

    def _last_words(self, text: bytes) -> List[bytes]:
        """A line that ended; not once more if it is the redraw that was written already."""
        again = self.redrawing and text == self.shown
        self.held, self.shown, self.redrawing = b"", b"", False
        return [] if again or not text else [text]
