"""`k3node logs`: lines of a rank's attempt logs as JSON, one a line: {ts, rank, attempt, stream, text}.

Payload (JSON on stdin): {log_dir, state_dir, rank, tail: n, follow: bool, previous: bool}. Following goes on over
restarts of the rank and ends when nobody reads any more.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from typing import IO, Any, Dict, List, Optional

from k3ctl.node import attemptlog, attempts

POLL_S = 0.3
STREAMS = {"O": "stdout", "E": "stderr", "K": "k3ctl"}


def main(argv: List[str]) -> int:
    """Print the lines asked for; with `follow` until the reader goes away."""
    if argv:
        sys.stderr.write("usage: k3node logs < payload\n")
        return 2
    payload = json.loads(sys.stdin.readline() or "{}")
    reader = Logs(payload, sys.stdout)
    try:
        reader.history()
        if payload.get("follow"):
            reader.follow()
    except (BrokenPipeError, KeyboardInterrupt):
        # The reader is gone: that is how following ends. Without this Python complains once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


class Logs:
    """One reading of one rank's logs."""

    def __init__(self, payload: Dict[str, Any], out: IO[str]) -> None:
        self.folder = os.path.join(payload["log_dir"], "rank%d" % payload["rank"])
        self.records = os.path.join(payload["state_dir"], "attempts.jsonl")
        self.rank: int = payload["rank"]
        self.tail: int = payload.get("tail", 100)
        self.previous: bool = payload.get("previous", False)
        self.out = out
        self.numbers: Dict[str, int] = {}
        self.at: Optional[attemptlog.LogFile] = None
        self.offset = 0

    def history(self) -> None:
        """The last lines of the newest attempt, or of the one before it."""
        files = attemptlog.files(self.folder)
        stamps = sorted({file.stamp for file in files})
        if not stamps:
            return
        if self.previous:
            if len(stamps) > 1:
                self._print(stamps[-2], attemptlog.tail(self.folder, self.tail, stamps[-2]))
            return
        # The position first, the lines after: a line that comes in between is shown twice rather than never.
        self.at = files[-1]
        self.offset = os.stat(self.at.path).st_size
        self._print(stamps[-1], attemptlog.tail(self.folder, self.tail, stamps[-1]))

    def follow(self) -> None:
        """Print what is added, in this file and in those that come after it."""
        rest = b""
        while True:
            rest = self._added(rest)
            newer = [f for f in attemptlog.files(self.folder) if self.at is None or f > self.at]
            if newer:
                rest = self._added(rest)  # what was written to the old file before the new one was opened
                self.at, self.offset, rest = newer[0], 0, b""
                continue
            if self._reader_is_gone():
                return
            time.sleep(POLL_S)

    def _added(self, rest: bytes) -> bytes:
        if self.at is None:
            return rest
        try:
            with open(self.at.path, "rb") as file:
                file.seek(self.offset)
                block = file.read()
        except OSError:
            return rest
        self.offset += len(block)
        *whole, rest = (rest + block).split(b"\n")
        self._print(self.at.stamp, [attemptlog.split(line.decode("utf-8", "replace")) for line in whole if line])
        return rest

    def _print(self, stamp: str, lines: List[attemptlog.LogLine]) -> None:
        number = self._number(stamp)
        for line in lines:
            record = {
                "ts": line.ts, "rank": self.rank, "attempt": number,
                "stream": STREAMS.get(line.stream, line.stream), "text": line.text,
            }  # fmt: skip
            self.out.write(json.dumps(record, sort_keys=True) + "\n")
        self.out.flush()

    def _number(self, stamp: str) -> int:
        """The attempt's number, 0 when its record is gone."""
        if stamp not in self.numbers:
            name = "attempt-%s.log" % stamp
            found = [a["attempt"] for a in attempts.merged(attempts.lines(self.records)) if a.get("log") == name]
            if not found:
                return 0
            self.numbers[stamp] = found[-1]
        return self.numbers[stamp]

    def _reader_is_gone(self) -> bool:
        poll = select.poll()
        poll.register(self.out.fileno(), 0)  # errors and hang-ups are always reported
        return any(event & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, event in poll.poll(0))
