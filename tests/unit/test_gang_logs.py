"""Attempt logs: how lines are cut, kept, counted, read back and followed."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from k3ctl.node import attemptlog, attempts
from k3ctl.node.attemptlog import AttemptLog, Splitter
from tests.unit.launch_fixtures import eventually


@pytest.mark.parametrize(
    ("blocks", "lines"),
    [
        ([b""], []),
        ([b"a\nb\n", b""], [b"a", b"b"]),
        ([b"a", b"b\n", b""], [b"ab"]),
        ([b"a\r\nb\r", b"\n", b""], [b"a", b"b"]),
        ([b"no end", b""], [b"no end"]),
        ([b"\n\n", b""], []),
        ([b"1%\r2%\r3%\n", b""], [b"1%", b"3%"]),
        ([b"1%\r2%\r3%\r", b""], [b"1%", b"3%"]),
        ([b"x" * 20000, b""], [b"x" * 20000]),
    ],
)
def test_lines_are_cut(blocks: list[bytes], lines: list[bytes]) -> None:
    splitter = Splitter()
    assert [line for block in blocks for line in splitter.feed(block, 10.0)] == lines


def test_one_redraw_a_second_is_kept() -> None:
    splitter = Splitter()
    found: list[bytes] = []
    for step in range(40):
        found += splitter.feed(b"%d%%\r" % step, step * 0.1)
    found += splitter.feed(b"", 4.0)
    assert len(found) == 5
    assert found[-1] == b"39%"


def test_a_bar_that_stands_still_is_shown_once() -> None:
    splitter = Splitter()
    assert splitter.feed(b"shards: 1%\r", 1.0) == []
    assert splitter.idle(2.0) == [b"shards: 1%"]
    assert splitter.idle(3.0) == []
    assert splitter.feed(b"shards: 2%", 4.0) == []
    assert splitter.idle(5.0) == [b"shards: 2%"]
    assert splitter.feed(b"\nnext", 6.0) == []
    assert splitter.idle(7.0) == []  # a line that is not a bar is written when it is whole
    assert splitter.feed(b" line\n", 8.0) == [b"next line"]


def test_a_log_is_read_back(tmp_path: Path) -> None:
    log = AttemptLog(str(tmp_path), keep=5, max_bytes=10_000)
    log.write("O", "out")
    log.write("E", "")
    log.write("K", "said by k3ctl")
    log.close()
    log.write("O", "too late")
    lines = attemptlog.tail(str(tmp_path), 10)
    assert [(line.stream, line.text) for line in lines] == [("O", "out"), ("E", ""), ("K", "said by k3ctl")]
    assert lines[0].ts.endswith("Z")
    assert log.recent == ["out"]
    assert attemptlog.tail(str(tmp_path), 1)[0].text == "said by k3ctl"
    assert attemptlog.tail(str(tmp_path), 0) == []
    assert attemptlog.tail(str(tmp_path / "none"), 5) == []


def test_a_long_log_goes_on_in_parts_and_the_number_is_bounded(tmp_path: Path) -> None:
    log = AttemptLog(str(tmp_path), keep=3, max_bytes=400)
    for number in range(60):
        log.write("O", f"line {number}")
    log.close()
    files = attemptlog.files(str(tmp_path))
    assert len(files) == 3
    assert all(os.stat(file.path).st_size <= 400 for file in files)
    assert [file.part for file in files] == sorted(file.part for file in files)
    assert (tmp_path / "current.log").resolve() == Path(files[-1].path)
    texts = [line.text for line in attemptlog.tail(str(tmp_path), 12)]
    assert texts == [f"line {n}" for n in range(48, 60)]


def test_attempts_of_one_second_have_names_of_their_own(tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        log = AttemptLog(str(tmp_path), keep=20, max_bytes=1000)
        log.close()
        names.add(log.name)
    assert len(names) == 3
    assert len(attemptlog.files(str(tmp_path))) == 3


def test_twenty_attempts_are_kept(tmp_path: Path) -> None:
    for number in range(25):
        (tmp_path / f"attempt-20261130T0000{number:02d}Z.log").write_text("")
    (tmp_path / "attempt-of-somebody.log").write_text("")
    log = AttemptLog(str(tmp_path), keep=20, max_bytes=1000)
    log.close()
    assert len(attemptlog.files(str(tmp_path))) == 20
    assert (tmp_path / "attempt-of-somebody.log").exists()
    assert not (tmp_path / "attempt-20261130T000005Z.log").exists()
    assert (tmp_path / "attempt-20261130T000006Z.log").exists()


def test_a_pipe_is_pumped_to_its_end(tmp_path: Path) -> None:
    log = AttemptLog(str(tmp_path), keep=5, max_bytes=10_000)
    code = "import sys; sys.stdout.buffer.write(b'ab\\xff\\n' + b'rest')"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        log.pump(child.stdout, "O")
    log.close()
    assert [line.text for line in attemptlog.tail(str(tmp_path), 5)] == ["ab\N{REPLACEMENT CHARACTER}", "rest"]


class Reading:
    """The verb `logs` in a process of its own."""

    def __init__(self, folder: Path, **more: object) -> None:
        payload = {"log_dir": str(folder), "state_dir": str(folder), "rank": 1, "tail": 2, **more}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "k3ctl.node", "logs"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(payload).encode())
        self.process.stdin.close()
        self.lines: list[dict[str, object]] = []
        self.leave = threading.Event()
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        rest = b""
        with self.process.stdout as source:
            while not self.leave.is_set():
                if not select.select([source], [], [], 0.05)[0]:
                    continue
                block = os.read(source.fileno(), 65536)
                *whole, rest = (rest + block).split(b"\n")
                self.lines += [json.loads(line) for line in whole]
                if not block:
                    return

    def texts(self) -> list[object]:
        return [line["text"] for line in self.lines]

    def end(self) -> int:
        self.process.wait(10)
        self.thread.join(5)
        return self.process.returncode


@pytest.fixture
def two_attempts(tmp_path: Path) -> Path:
    folder = tmp_path / "rank1"
    for number, texts in ((1, ("a1", "a2", "a3")), (2, ("b1", "b2", "b3"))):
        log = AttemptLog(str(folder), keep=5, max_bytes=10_000)
        attempts.append(
            str(tmp_path / "attempts.jsonl"), {"event": "start", "attempt": number, "at": 1, "log": log.name}
        )
        for text in texts:
            log.write("O", text)
        log.close()
    return tmp_path


def test_the_last_lines_and_the_attempt_before(two_attempts: Path) -> None:
    newest = Reading(two_attempts)
    assert newest.end() == 0
    assert [(line["attempt"], line["rank"], line["stream"], line["text"]) for line in newest.lines] == [
        (2, 1, "stdout", "b2"), (2, 1, "stdout", "b3"),
    ]  # fmt: skip
    before = Reading(two_attempts, previous=True, tail=9)
    assert before.end() == 0
    assert before.texts() == ["a1", "a2", "a3"]
    assert {line["attempt"] for line in before.lines} == {1}


def test_no_log_is_no_line(tmp_path: Path) -> None:
    reading = Reading(tmp_path)
    assert reading.end() == 0
    assert reading.lines == []


def test_following_goes_on_over_a_restart_and_ends_with_the_reader(two_attempts: Path) -> None:
    reading = Reading(two_attempts, follow=True)
    eventually(lambda: reading.texts() == ["b2", "b3"])
    with Path(attemptlog.files(str(two_attempts / "rank1"))[-1].path).open("a") as file:
        file.write(f"{attemptlog.when(time.time())} E late\n{attemptlog.when(time.time())} E ha")
        file.flush()
        eventually(lambda: reading.texts()[-1:] == ["late"])
        file.write("lf\n")
    eventually(lambda: reading.texts()[-1:] == ["half"])
    log = AttemptLog(str(two_attempts / "rank1"), keep=5, max_bytes=10_000)
    log.write("K", "attempt 3")
    eventually(lambda: reading.texts()[-1:] == ["attempt 3"])
    assert reading.process.poll() is None
    reading.leave.set()  # the reader goes away while nothing is written
    assert reading.end() == 0
    log.close()
