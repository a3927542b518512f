"""Runs programs on the outer machine: argv in, text out, a typed error with the program's own words."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from k3ctl.errors import K3ctlError, Problem


class LabFailed(K3ctlError):
    """The lab could not be made, changed or removed."""


@dataclass(frozen=True)
class Ended:
    """How a program ended. `status` 124 means that it ran into its time limit."""

    argv: tuple[str, ...]
    status: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        """True when the status is 0."""
        return self.status == 0


class Runner(Protocol):
    """Runs one argv on the outer machine; a non-zero status is a result."""

    def __call__(
        self, argv: Sequence[str], *, stdin: str = "", timeout_s: float = 30.0, env: Mapping[str, str] | None = None
    ) -> Ended: ...


def run(
    argv: Sequence[str], *, stdin: str = "", timeout_s: float = 30.0, env: Mapping[str, str] | None = None
) -> Ended:
    """Run to the end within `timeout_s` seconds. A program that is not there is status 127."""
    try:
        done = subprocess.run(
            argv, input=stdin, capture_output=True, text=True, errors="replace", timeout=timeout_s, env=env, check=False
        )
    except FileNotFoundError:
        return Ended(tuple(argv), 127, "", f"{argv[0]}: not found")
    except subprocess.TimeoutExpired as error:
        text = error.stderr.decode(errors="replace") if isinstance(error.stderr, bytes) else str(error.stderr or "")
        return Ended(tuple(argv), 124, "", f"{text}\nstill running after {timeout_s:.0f} s")
    return Ended(tuple(argv), done.returncode, done.stdout, done.stderr)


def must(runner: Runner, argv: Sequence[str], *, stdin: str = "", timeout_s: float = 30.0) -> str:
    """Stdout of a program that has to succeed; LabFailed with its last words when it does not."""
    ended = runner(argv, stdin=stdin, timeout_s=timeout_s)
    if not ended.ok:
        raise LabFailed(
            Problem(
                what=f"`{' '.join(argv)}` failed",
                found=f"exit status {ended.status}",
                expected="exit status 0",
                evidence=tail(ended.stderr or ended.stdout),
            )
        )
    return ended.stdout


def tail(text: str, lines: int = 15) -> str:
    """The last lines of a text."""
    return "\n".join(text.strip().splitlines()[-lines:])
