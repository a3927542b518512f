"""The text that makes a host run an argv: quoted, bounded in time, as root where asked, in any login shell. Pure."""

from __future__ import annotations

import base64
import re
import shlex
from dataclasses import dataclass

from k3ctl.protocols import Command
from k3ctl.secret import Secret

# Printed by the host right before the command runs: what comes earlier is talk of the login shell's start files, and
# without it the command never ran.
BEGIN = b"k3ctl:begin\n"
KILL_AFTER_S = 5
# While a command streams, the controller sends a byte every BEAT_S; the host ends the command after SILENCE_S without.
BEAT = b"."
BEAT_S = 15.0
SILENCE_S = 60.0
TIMED_OUT = 124
KILLED = 137
# Characters that csh or fish treat specially even between single quotes.
ODD = re.compile(r"[\\\n!]")


@dataclass(frozen=True)
class Sudo:
    """How to become root: not at all (already root), `sudo -n`, or with a password on stdin."""

    needed: bool
    password: Secret | None = None

    def prefix(self) -> str:
        """What stands before the command."""
        if not self.needed:
            return ""
        # -k: a cached login would leave the password unread, and the command would find it on its stdin.
        return "sudo -k -S -p '' -- " if self.password is not None else "sudo -n -- "

    def stdin(self) -> bytes:
        """What sudo reads before the command reads its own stdin."""
        return b"" if not self.needed or self.password is None else self.password.reveal().encode() + b"\n"


def stdin_of(command: Command) -> bytes:
    """The bytes for the command's stdin."""
    return command.stdin.reveal().encode() if isinstance(command.stdin, Secret) else command.stdin


def bounded(command: Command) -> str:
    """The argv under GNU timeout; a limit of 0 means none, but signals still reach all of its children."""
    return f"timeout -k {KILL_AFTER_S} {command.timeout_s:g} {shlex.join(command.argv)}"


def run_text(command: Command, sudo: Sudo) -> str:
    """Run to the end with the whole stdin. `exit $?` keeps the shell, so that a signal becomes a status (128+n)."""
    return _wrapped(f"echo k3ctl:begin; {bounded(command)}; exit $?", sudo)


def stream_text(command: Command, sudo: Sudo, silence_s: float = SILENCE_S) -> str:
    """Run until done, or until stdin ends or is silent: then the command is ended, whatever became of the controller.

    stdin is the command's own input, whose length is in the text, and then stays open: BEAT comes now and then.
    """
    count = len(stdin_of(command))
    script = (
        f"echo k3ctl:begin; d=$(head -c {count} | base64 -w0); exec 3<&0; "
        f'printf %s "$d" | base64 -d | {bounded(command)} & p=$!; d=; '
        f'{{ while [ -n "$(timeout {silence_s:g} head -c 1 <&3)" ]; do :; done; kill $p; }} >/dev/null 2>&1 & w=$!; '
        # GNU timeout exits without its child when a signal comes right between its fork and its return from it (seen
        # on a busy machine). Its process group has its number, so what is left of the command is still found.
        "wait $p; s=$?; kill -s TERM -- -$p 2>/dev/null && sleep 0.5; kill -s KILL -- -$p 2>/dev/null; "
        "kill $w 2>/dev/null; exit $s"
    )
    return _wrapped(script, sudo)


def open_text(command: Command, sudo: Sudo) -> str:
    """Run with stdin left open for a conversation; the command itself must end when stdin ends."""
    return run_text(command, sudo)


def _wrapped(script: str, sudo: Sudo) -> str:
    # C.UTF-8: messages that we judge are English, and output is still UTF-8.
    text = f"env LC_ALL=C.UTF-8 {sudo.prefix()}sh -c {shlex.quote(script)}"
    if not ODD.search(text):
        return text
    packed = base64.b64encode(text.encode()).decode()
    return f"sh -c 'eval \"$(echo {packed} | base64 -d)\"'"


def judged_status(status: int, seconds: float, limit_s: float) -> int:
    """The status to report: a command that had to be killed at its limit counts as timed out."""
    if limit_s and seconds >= limit_s and status in (KILLED, -1):
        return TIMED_OUT
    return status
