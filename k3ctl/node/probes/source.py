"""Where facts come from: small files under a root folder, and tools that are asked for JSON or key=value lines."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class CannotTell(Exception):
    """A collector's own words for why it has no facts."""


def under(root: str, path: str) -> str:
    """`path` below `root`: ('/tree', '/etc/os-release') -> '/tree/etc/os-release'."""
    return os.path.join(root or "/", path.lstrip("/"))


def text(path: str) -> str | None:
    """A small file's text without the blanks around it, or None when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20).strip()
    except OSError:
        return None


def number(path: str) -> int | None:
    """A file that holds one whole number, or None."""
    found = text(path)
    try:
        return int(found or "")
    except ValueError:
        return None


def listing(path: str) -> list[str]:
    """The names in a folder, sorted; none when it cannot be read."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def pairs(content: str | None, separator: str = "=") -> dict[str, str]:
    """Lines of KEY=VALUE as a dict; quotes around a value are taken off."""
    found = {}
    for line in (content or "").splitlines():
        key, sep, value = line.partition(separator)
        if sep:
            found[key.strip()] = value.strip().strip('"')
    return found


def tool(argv: list[str], timeout_s: float = 3.0) -> tuple[int, str]:
    """Run a tool; (status, stdout). Raises CannotTell when it is not installed or does not end in time."""
    path = shutil.which(argv[0], path=_PATH)
    if not path:
        raise CannotTell("%s is not installed" % argv[0])
    try:
        done = subprocess.run(
            [path, *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            env={"PATH": _PATH, "LC_ALL": "C"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CannotTell("%s did not end within %g s" % (argv[0], timeout_s)) from None
    return done.returncode, done.stdout.decode("utf-8", "replace")


def tool_json(argv: list[str], timeout_s: float = 3.0) -> Any:
    """What a tool says in JSON. Raises CannotTell when it says something else."""
    status, said = tool(argv, timeout_s)
    try:
        return json.loads(said or "[]")
    except ValueError:
        raise CannotTell("%s (status %d) did not answer in JSON" % (" ".join(argv), status)) from None
