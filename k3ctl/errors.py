"""Typed errors of the core. The command line turns them into text and an exit code in one place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit status of every command; part of the user contract."""

    OK = 0
    FAILED = 1
    USAGE = 2
    PREFLIGHT = 3
    UNREACHABLE = 4
    INTERNAL = 5
    INTERRUPTED = 130


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where, what was found, what was expected, what to do next.

    `file`, `line` (1-based) and `key` (dotted path) are set for problems in input files, `node` and `phase` for
    problems on hosts. `evidence` is raw text (last lines of a log or of stderr), shown indented.
    """

    what: str
    found: str = ""
    expected: str = ""
    fix: str = ""
    node: str = ""
    phase: str = ""
    file: str = ""
    line: int | None = None
    key: str = ""
    evidence: str = ""


class K3ctlError(Exception):
    """Base of every error that k3ctl raises on purpose; carries all problems, not the first."""

    code: ExitCode = ExitCode.FAILED

    def __init__(self, *problems: Problem) -> None:
        if not problems:
            raise ValueError("an error without a problem says nothing")
        super().__init__("; ".join(dict.fromkeys(p.what for p in problems)))  # several nodes may have the same one
        self.problems: tuple[Problem, ...] = problems

    @classmethod
    def of(cls, problems: Iterable[Problem]) -> K3ctlError:
        """An error of this class that carries the given problems."""
        return cls(*problems)


class ConfigError(K3ctlError):
    """The inventory, cluster.yml, a profile or the command line is wrong; no host was touched."""

    code = ExitCode.USAGE


class PreflightRefused(K3ctlError):
    """The hosts cannot serve this plan; findings say why."""

    code = ExitCode.PREFLIGHT


class Unreachable(K3ctlError):
    """A host could not be reached or logged in to."""

    code = ExitCode.UNREACHABLE


class LockHeld(K3ctlError):
    """Another operator works on this cluster."""


class PhaseFailed(K3ctlError):
    """A phase did what it could and failed."""


class AgentFailed(PhaseFailed):
    """A verb of the node agent ended badly, or its reply was no JSON."""


class Interrupted(K3ctlError):
    """The user asked to stop. `problems` say what still runs and how to stop it."""

    code = ExitCode.INTERRUPTED


class InternalError(K3ctlError):
    """k3ctl itself is wrong; please report."""

    code = ExitCode.INTERNAL
