"""Unpacks a tar archive (plain, zstd, gzip or xz) with the node's own tar, fed through a pipe."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from typing import Callable, Dict, List, Optional

BLOCK = 1 << 20
_MAGIC = (
    (b"\x28\xb5\x2f\xfd", ["zstd", "-dc", "--long=31"]),
    (b"\x1f\x8b", ["gzip", "-dc"]),
    (b"\xfd7zXZ\x00", ["xz", "-dc"]),
)
# GNU tar takes leading slashes off, refuses names with "..", and makes symbolic links last, so that no member can be
# written through one. Owners in the archive mean nothing here.
TAR = ["tar", "--extract", "--file=-", "--no-same-owner", "--preserve-permissions"]


class BadArchive(Exception):
    """The archive cannot be unpacked; the text ends with what the tool said."""


def decompressor(path: str) -> List[str]:
    """The command that decompresses this file to stdout, by its first bytes; empty for a plain tar."""
    with open(path, "rb") as file:
        head = file.read(8)
    for magic, argv in _MAGIC:
        if head.startswith(magic):
            return list(argv)
    return []


def missing_tools(path: str) -> List[str]:
    """Programs that unpacking this file needs and that are not on the node."""
    wanted = [TAR[0], *decompressor(path)[:1]]
    return [name for name in wanted if shutil.which(name) is None]


def unpack(path: str, target: str, moved: Callable[[int], None], go_on: Callable[[], bool]) -> bool:
    """Unpack into an existing folder; False when `go_on` ended it. Raises BadArchive. `moved` hears bytes read so far.

    This process feeds the first program: when it dies, the programs see a short archive and end by themselves.
    """
    command = decompressor(path)
    environment = dict(os.environ, LC_ALL="C")
    with tempfile.TemporaryFile() as said:
        tar = _spawn([*TAR, "--directory=" + target], environment, said.fileno())
        programs = [tar]
        first = tar
        if command:
            # The decompressor writes straight into tar's end of the pipe.
            first = _spawn(command, environment, said.fileno(), out=tar)
            programs.insert(0, first)
        ended = _feed(path, first, moved, go_on)
        for program in programs:
            if not ended:
                program.kill()
            program.wait()
        if not ended:
            return False
        names = [*command[:1], TAR[0]]
        bad = [(name, p.returncode) for name, p in zip(names, programs) if p.returncode != 0]  # noqa: B905 - Python 3.8
        if bad:
            said.seek(0)
            text = said.read()[-2000:].decode("utf-8", "replace").strip()
            raise BadArchive("%s ended with status %d: %s" % (bad[-1][0], bad[-1][1], text))
    return True


def _spawn(
    argv: List[str], environment: Dict[str, str], stderr: int, out: Optional["subprocess.Popen[bytes]"] = None
) -> "subprocess.Popen[bytes]":
    stdout = subprocess.DEVNULL if out is None else out.stdin
    program = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr, env=environment)
    if out is not None and out.stdin is not None:
        out.stdin.close()  # only the decompressor may hold tar's input open
    return program


def _feed(
    path: str, program: "subprocess.Popen[bytes]", moved: Callable[[int], None], go_on: Callable[[], bool]
) -> bool:
    """Write the archive into the program's stdin; False when `go_on` ended it."""
    assert program.stdin is not None  # noqa: S101 - opened as a pipe above
    at = 0
    with open(path, "rb") as archive:
        try:
            while True:
                block = archive.read(BLOCK)
                if not block:
                    break
                if not go_on():
                    return False
                program.stdin.write(block)
                at += len(block)
                moved(at)
            program.stdin.close()
        except BrokenPipeError:
            pass  # the program has ended early: its status says why
    return True
