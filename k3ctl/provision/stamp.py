"""The note on a node that says what was applied to it, and the one command that reads it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from k3ctl.errors import PhaseFailed, Problem
from k3ctl.protocols import Command, CommandResult

# One round trip for both questions. A reboot is asked for by Debian's and Ubuntu's own flag files.
_READ = """\
import json, sys
def text(path):
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:
        return None
json.dump({"stamp": text(sys.argv[1]), "reboot": text("/run/reboot-required"),
           "packages": text("/run/reboot-required.pkgs")}, sys.stdout)
"""


@dataclass(frozen=True)
class Stamp:
    """What was applied: digest of roles and variables, k3ctl's version, when (UTC, ISO 8601)."""

    digest: str
    k3ctl: str
    applied: str

    @property
    def text(self) -> str:
        """The content of the file."""
        return json.dumps({"applied": self.applied, "digest": self.digest, "k3ctl": self.k3ctl}, sort_keys=True) + "\n"


@dataclass(frozen=True)
class NodeState:
    """What a node says: the stamp (None: none, or not readable as one) and the packages that ask for a reboot."""

    stamp: Stamp | None
    reboot_wanted: bool = False
    reboot_packages: tuple[str, ...] = ()


def read_command(python: str, path: str) -> Command:
    """Reads the stamp and the reboot flag."""
    return Command((python, "-c", _READ, path), timeout_s=20.0)


def judge(result: CommandResult) -> NodeState:
    """The state from what the command printed. Raises PhaseFailed when it failed: unknown is not unprovisioned."""
    try:
        if not result.ok:
            raise ValueError(f"status {result.status}")
        reply = json.loads(result.stdout)
        packages = tuple(dict.fromkeys((reply["packages"] or "").split()))
        return NodeState(_stamp(reply["stamp"]), reply["reboot"] is not None, packages)
    except (ValueError, KeyError, TypeError) as error:
        raise PhaseFailed(
            Problem(
                what="could not read what was applied to this host before",
                found=str(error),
                expected="a JSON object",
                node=result.node,
                phase="provision",
                evidence=(result.stderr or result.stdout)[-2000:],
            )
        ) from error


def _stamp(text: str | None) -> Stamp | None:
    """None for a file that is missing, cut short or of another form: then the roles are applied again."""
    try:
        fields = json.loads(text or "")
        return Stamp(str(fields["digest"]), str(fields["k3ctl"]), str(fields["applied"]))
    except (ValueError, KeyError, TypeError):
        return None
