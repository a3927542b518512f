"""One command on one session channel: feeds stdin, drains stdout and stderr, and never waits longer than its limit."""

from __future__ import annotations

import codecs
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from paramiko import Channel
from paramiko.ssh_exception import SSHException

from k3ctl.edge import ssh_errors
from k3ctl.edge.ssh_command import BEAT, BEAT_S, BEGIN
from k3ctl.errors import Unreachable
from k3ctl.protocols import Stop

CHUNK = 65536
SLICE_S = 0.25
STDERR_KEPT = 65536
# After the end of stdin the host ends the command: TERM, and KILL 5 s later.
STOP_GRACE_S = 8.0


@dataclass(frozen=True)
class Ended:
    """How a command ended. `status` -1: none came (connection broken, or cut off by the limit)."""

    status: int
    stdout: bytes
    stderr: bytes
    seconds: float
    cut: bool = False

    @property
    def began(self) -> bool:
        """True when the command itself started."""
        return BEGIN in self.stdout

    @property
    def output(self) -> bytes:
        """stdout of the command itself, without what the login shell said before."""
        return self.stdout.partition(BEGIN)[2]


class Talk:
    """A command on a channel, from exec to exit status."""

    def __init__(self, channel: Channel, limit_s: float) -> None:
        self.channel = channel
        self.began_at = time.monotonic()
        self._stderr = bytearray()
        self._cut = False
        # Everything below may block for ever on a dead peer; closing the channel wakes all of it.
        self._watchdog = threading.Timer(limit_s, self._cut_off) if limit_s else None
        if self._watchdog:
            self._watchdog.daemon = True
            self._watchdog.start()

    def run(self, text: str, stdin: bytes) -> Ended:
        """Run to the end with that stdin, which is then closed."""
        try:
            self._exec(text)
            drain = self._drain_stderr()
            feeder = self._feed(stdin, close=True)
            stdout = bytearray()
            while data := self.channel.recv(CHUNK):
                stdout += data
            drain.join()
            feeder.join()
            return self._ended(bytes(stdout))
        finally:
            self.close()

    def stream(self, text: str, stdin: bytes, on_line: Callable[[str], None], stop: Stop) -> Ended:
        """Run with stdin left open; hand over lines. When `stop` is set, stdin ends and with it the command."""
        lines = Lines(on_line)
        try:
            self._exec(text)
            drain = self._drain_stderr()
            self._read_lines(lines, stop, self._feed(stdin, close=False))
            drain.join(STOP_GRACE_S)
            lines.end()
            return self._ended(lines.head)
        finally:
            self.close()

    def _exec(self, text: str) -> None:
        try:
            self.channel.exec_command(text)
        except (SSHException, EOFError, OSError) as error:
            if not self._cut:
                raise Unreachable(ssh_errors.no_session(str(error) or type(error).__name__)) from error

    def _read_lines(self, lines: Lines, stop: Stop, feeder: threading.Thread) -> None:
        # A reader of its own and no channel timeout: paramiko's holds for stdin and stderr of the channel as well.
        chunks: queue.SimpleQueue[bytes] = queue.SimpleQueue()

        def read() -> None:
            while data := self.channel.recv(CHUNK):
                chunks.put(data)
            chunks.put(b"")

        _started(read, "ssh-stdout")
        asked_at = 0.0
        beat_at = time.monotonic()
        while True:
            if not asked_at and not feeder.is_alive() and time.monotonic() - beat_at > BEAT_S:
                beat_at = time.monotonic()
                self._feed(BEAT, close=False)
            if not asked_at and stop.is_set():
                asked_at = time.monotonic()
                self.channel.shutdown_write()
            if asked_at and time.monotonic() - asked_at > STOP_GRACE_S:
                self._cut_off()
            try:
                data = chunks.get(timeout=SLICE_S)
            except queue.Empty:
                continue
            if not data:
                return
            lines.add(data)

    def close(self) -> None:
        """Give the channel back; a command that reads its stdin sees the end of it."""
        if self._watchdog:
            self._watchdog.cancel()
        self.channel.close()

    def _ended(self, stdout: bytes) -> Ended:
        # It may come a moment after the end of stdout; a channel that closes without one (broken, cut off) gives -1.
        status = self.channel.recv_exit_status()
        seconds = time.monotonic() - self.began_at
        return Ended(status, stdout, bytes(self._stderr), seconds, self._cut)

    def _cut_off(self) -> None:
        self._cut = True
        self.channel.close()

    def _drain_stderr(self) -> threading.Thread:
        def drain() -> None:
            while data := self.channel.recv_stderr(CHUNK):
                self._stderr += data
                del self._stderr[:-STDERR_KEPT]

        return _started(drain, "ssh-stderr")

    def _feed(self, stdin: bytes, *, close: bool) -> threading.Thread:
        def feed() -> None:
            try:
                if stdin:
                    self.channel.sendall(stdin)
                if close:
                    self.channel.shutdown_write()
            except (OSError, SSHException, EOFError):
                return  # the command ended without reading all of its input; its status tells

        return _started(feed, "ssh-stdin")


class Lines:
    """Splits a byte stream into lines of text; what comes before the begin mark is kept apart in `head`."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self.head = b""
        self._on_line = on_line
        self._text = ""
        self._begun = False
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, data: bytes) -> None:
        """More bytes; whole lines are handed over at once, without their line end."""
        if not self._begun:
            self.head += data
            talk, mark, data = self.head.partition(BEGIN)
            if not mark:
                return
            self.head, self._begun = talk + mark, True
        self._text += self._decoder.decode(data)
        *whole, self._text = self._text.split("\n")
        for line in whole:
            self._on_line(line.removesuffix("\r"))

    def end(self) -> None:
        """No more bytes: a last line without a line end is a line too."""
        self._text += self._decoder.decode(b"", final=True)
        if self._text:
            self._on_line(self._text)
            self._text = ""


def _started(work: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread
