"""Calls the node agent over a Remote: protocols.Agent. The agent travels with the call where it is not installed."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from k3ctl.cluster import Cluster
from k3ctl.edge.ssh import Conversation
from k3ctl.edge.zipapp import NodeApp, node_app
from k3ctl.errors import AgentFailed, Problem, Unreachable
from k3ctl.protocols import Command, CommandResult, Remote, Stop

HOME = "/opt/k3ctl/node"
# Statuses of our own scripts, above those of the agent (0..2) and below those of signals.
NOT_INSTALLED = 90
NO_PYTHON = 91
CUT_SHORT = 92
KEPT = 3
UNITS = "/etc/systemd/system/k3ctl-*.service /run/systemd/transient/k3ctl-*.service"


class TalkingRemote(Remote, Protocol):
    """A Remote that can also keep a command's stdin open, as FabricRemote does."""

    def converse(self, node: str, command: Command) -> Conversation:
        """Start a command and keep talking with it."""


class NodeAgent:
    """protocols.Agent. One for a run: it builds the agent once and remembers on which nodes it is installed."""

    def __init__(
        self, cluster: Cluster, remote: TalkingRemote, *, app: NodeApp | None = None, folder: str = HOME
    ) -> None:
        self._python = {node.name: node.ssh.python for node in cluster.inventory.nodes}
        self._remote = remote
        self._app = app or node_app()
        self._folder = folder
        self._installed: set[str] = set()
        self._lock = threading.Lock()

    @property
    def path(self) -> str:
        """Where the agent is on a node once installed."""
        return f"{self._folder}/{self._app.name}"

    def call(self, node: str, verb: str, payload: Mapping[str, Any], *, timeout_s: float = 30.0) -> dict[str, Any]:
        """Run a verb as root with the payload on stdin; its JSON reply. Raises AgentFailed.

        One round trip: on a node where the agent is known to be installed only the payload is sent. If it is gone
        there, the call is made again with the agent.
        """
        data = json.dumps(payload).encode()
        result = None
        if self._is_installed(node):
            result = self._remote.run(node, self._command(node, verb, data, timeout_s, carry=False))
        if result is None or result.status == NOT_INSTALLED:
            self._forget(node)
            result = self._remote.run(node, self._command(node, verb, data, timeout_s, carry=True))
        return self._reply(node, verb, self._after_origin(node, result), timeout_s)

    def install(self, node: str) -> str:
        """Put the agent on the host for good and return its path. Atomic; changes nothing when it is there."""
        script = install_script(self.path, len(self._app.data))
        result = self._remote.run(node, Command(("sh", "-c", script), stdin=self._app.data, sudo=True, timeout_s=60))
        if not result.ok:
            raise AgentFailed(self._problem(node, "install", result, 60))
        with self._lock:
            self._installed.add(node)
        return self.path

    def lines(
        self, node: str, verb: str, payload: Mapping[str, Any], on_line: Callable[[str], None], stop: Stop
    ) -> None:
        """Like call, but hands over each line of stdout as it comes; ends the verb when `stop` is set."""
        data = json.dumps(payload).encode()
        last: list[str] = []

        def line(text: str) -> None:
            if text in ORIGINS:
                self._note_origin(node, text)
            else:
                last[:] = [text]
                on_line(text)

        carry = not self._is_installed(node)
        result = self._remote.lines(node, self._command(node, verb, data, 0.0, carry=carry), line, stop)
        if result.status == NOT_INSTALLED and not carry:
            self._forget(node)
            result = self._remote.lines(node, self._command(node, verb, data, 0.0, carry=True), line, stop)
        if not result.ok and not stop.is_set():
            raise AgentFailed(self._problem(node, verb, result, 0.0))

    def converse(self, node: str, verb: str, payload: Mapping[str, Any]) -> Conversation:
        """Start a verb that keeps reading lines from stdin; the payload is the first one. It ends with its stdin."""
        data = json.dumps(payload).encode() + b"\n"
        talk = self._remote.converse(node, self._command(node, verb, data, 0.0, carry=True))
        origin = talk.line(30.0)
        if origin in ORIGINS:
            return talk
        said = talk.errors()
        talk.close()
        status = NO_PYTHON if NO_PYTHON_TEXT in said else 1
        raise AgentFailed(self._problem(node, verb, CommandResult(node, (), status, origin or "", said), 30.0))

    def _command(self, node: str, verb: str, data: bytes, timeout_s: float, *, carry: bool) -> Command:
        python = self._python[node]
        if not carry:
            script = installed_script(self.path, python, verb)
            return Command(("sh", "-c", script), stdin=data, sudo=True, timeout_s=timeout_s)
        script = carried_script(self.path, python, verb, len(self._app.data))
        return Command(("sh", "-c", script), stdin=self._app.data + data, sudo=True, timeout_s=timeout_s)

    def _after_origin(self, node: str, result: CommandResult) -> CommandResult:
        origin, _, rest = result.stdout.partition("\n")
        if origin not in ORIGINS:
            return result
        self._note_origin(node, origin)
        return replace(result, stdout=rest)

    def _note_origin(self, node: str, origin: str) -> None:
        with self._lock:
            if origin == ORIGIN_INSTALLED:
                self._installed.add(node)

    def _is_installed(self, node: str) -> bool:
        with self._lock:
            return node in self._installed

    def _forget(self, node: str) -> None:
        with self._lock:
            self._installed.discard(node)

    def _reply(self, node: str, verb: str, result: CommandResult, timeout_s: float) -> dict[str, Any]:
        if result.ok:
            try:
                reply = json.loads(result.stdout)
            except ValueError:
                reply = None
            if isinstance(reply, dict):
                return reply
        if result.status == NO_PYTHON:
            raise Unreachable(no_python(node, self._python[node]))
        raise AgentFailed(self._problem(node, verb, result, timeout_s))

    def _problem(self, node: str, verb: str, result: CommandResult, timeout_s: float) -> Problem:
        if result.status == NO_PYTHON:
            return no_python(node, self._python[node])
        tail = result.stderr.strip()[-2000:]
        last = tail.splitlines()[-1] if tail else ""
        if result.status == 124:
            found, fix = (
                f"no end within {timeout_s:.0f} s",
                "run the command again; if it stays, look at the host's load",
            )
        elif result.status == CUT_SHORT:
            found, fix = "the agent arrived incomplete", "check the connection and the free space of the host's /tmp"
        elif result.ok:
            found, fix = f"no JSON: {result.stdout.strip()[-200:] or 'nothing'}", "report this as a bug"
        else:
            found, fix = f"status {result.status}: {last or 'no word on stderr'}", "see the text below"
        return Problem(
            what=f"the node agent could not do `{verb}`",
            found=found,
            expected="status 0 and one JSON object",
            fix=fix,
            node=node,
            evidence=tail,
        )


ORIGIN_INSTALLED = "k3node:installed"
ORIGIN_CARRIED = "k3node:carried"
ORIGINS = (ORIGIN_INSTALLED, ORIGIN_CARRIED)
NO_PYTHON_TEXT = "k3node: no python"


def _has_python(python: str) -> str:
    return f"command -v {shlex.quote(python)} >/dev/null || {{ echo '{NO_PYTHON_TEXT}' >&2; exit {NO_PYTHON}; }}; "


def _invoke(python: str, file: str, verb: str) -> str:
    # -I: neither the caller's directory nor PYTHON* variables of the host may change what is imported.
    return f"{shlex.quote(python)} -I {file} {shlex.quote(verb)}"


def installed_script(path: str, python: str, verb: str) -> str:
    """Run the installed agent, or exit with NOT_INSTALLED."""
    return (
        f"[ -f {path} ] || exit {NOT_INSTALLED}; {_has_python(python)}echo {ORIGIN_INSTALLED}; "
        f"exec {_invoke(python, path, verb)}"
    )


def carried_script(path: str, python: str, verb: str, count: int) -> str:
    """stdin is the agent (`count` bytes), then the payload: run the installed agent if there is one, else this one.

    The file is private, lives as long as the call, and goes whatever ends it: the shell waits in the background form,
    since it would sit on a signal as long as a child in the foreground runs. It stays until Python has ended, so that
    the timeout around it goes on to SIGKILL if it must.
    """
    return (
        f"{_has_python(python)}"
        f"if [ -f {path} ]; then head -c {count} >/dev/null; echo {ORIGIN_INSTALLED}; "
        f"exec {_invoke(python, path, verb)}; fi; "
        "d=$(mktemp -d) || exit 1; p=; trap 'rm -rf \"$d\"' EXIT; "
        "trap 'rm -rf \"$d\"; wait $p; exit 143' TERM HUP INT; "
        f'head -c {count} >"$d/k3node.pyz" && [ $(wc -c <"$d/k3node.pyz") -eq {count} ] || exit {CUT_SHORT}; '
        f"echo {ORIGIN_CARRIED}; exec 3<&0; "
        f"{_invoke(python, chr(34) + '$d/k3node.pyz' + chr(34), verb)} <&3 & p=$!; exec 3<&-; wait $p; exit $?"
    )


def install_script(path: str, count: int, units: str = UNITS) -> str:
    """stdin is the agent: put it at `path`, whole or not at all; keep the newest few and those that a unit names.

    A unit starts its agent at the next boot too: the file must be there however many versions came after it.
    """
    folder = path.rpartition("/")[0]
    return (
        f"if [ -f {path} ]; then cat >/dev/null; exit 0; fi; umask 022; mkdir -p {folder} || exit 1; "
        f"t=$(mktemp {folder}/.new.XXXXXX) || exit 1; trap 'rm -f \"$t\"' EXIT; trap 'exit 143' TERM HUP INT; "
        f'cat >"$t" && [ $(wc -c <"$t") -eq {count} ] || exit {CUT_SHORT}; '
        f'chmod 0755 "$t" && chown 0:0 "$t" && sync "$t" && mv -f "$t" {path} || exit 1; '
        f"ls -1t {folder}/k3node-*.pyz | tail -n +{KEPT + 1} | while read -r f; do "
        f'grep -qsF "$f" {units} || rm -f "$f"; done'
    )


def no_python(node: str, python: str) -> Problem:
    """The host has no Python where the inventory says."""
    return Problem(
        what="Python is missing on the host",
        found=f"no {python}",
        expected="Python 3.8 or newer",
        fix="on the host: `apt-get update && apt-get install -y python3`, or set ansible_python_interpreter",
        node=node,
    )
