"""What the core asks of the outside world: small protocols that `edge/` implements and tests replace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from k3ctl.secret import Secret


@dataclass(frozen=True)
class Command:
    """An argv for one host. The builder decides what to run, somebody else runs it.

    `sudo` runs it as root. `timeout_s` bounds it on the controller and on the host (GNU timeout), so that nothing is
    left behind. `stdin` may carry secrets; argv may not.
    """

    argv: tuple[str, ...]
    stdin: bytes | Secret = b""
    sudo: bool = False
    timeout_s: float = 30.0


@dataclass(frozen=True)
class CommandResult:
    """What came of a command on one host. `status` 124 means that it ran into its time limit."""

    node: str
    argv: tuple[str, ...]
    status: int
    stdout: str
    stderr: str
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """True when the command exited with status 0."""
        return self.status == 0


class Stop(Protocol):
    """Asked by everything that waits: has the user asked to stop?"""

    def is_set(self) -> bool:
        """True after the first Ctrl-C or SIGTERM."""

    def wait(self, timeout: float) -> bool:
        """Sleep up to `timeout` seconds; True at once when asked to stop."""


class Remote(Protocol):
    """Runs commands on nodes (by inventory name). Raises Unreachable when a host cannot be reached."""

    def run(self, node: str, command: Command) -> CommandResult:
        """Run to the end; a non-zero status is a result, not an exception."""

    def lines(self, node: str, command: Command, on_line: Callable[[str], None], stop: Stop) -> CommandResult:
        """Run and hand over each line of stdout as it comes; ends the remote command when `stop` is set.

        `timeout_s` of the command is its longest run; 0 means none.
        """


class Agent(Protocol):
    """The node agent (the k3ctl/node zipapp): JSON in, JSON out, one round trip a call."""

    def call(self, node: str, verb: str, payload: Mapping[str, Any], *, timeout_s: float = 30.0) -> dict[str, Any]:
        """Run `k3node VERB` as root with `payload` as JSON on stdin; its stdout is one JSON object.

        Works on a bare host: an agent that is not installed there travels with the call and leaves nothing behind.
        Raises AgentFailed (a PhaseFailed) with the tail of stderr when the status is not 0 or the output is no JSON.
        """

    @property
    def path(self) -> str:
        """Where the agent is on a node once it is installed."""

    def install(self, node: str) -> str:
        """Put the agent on the host for good (idempotent) and return its path: units start it by that path."""

    def lines(
        self, node: str, verb: str, payload: Mapping[str, Any], on_line: Callable[[str], None], stop: Stop
    ) -> None:
        """Like call, but hands over each line of stdout as it comes (follow modes)."""


@dataclass(frozen=True)
class PlayEvent:
    """One thing that happened in a play. `kind`: task, ok, changed, failed, unreachable, skipped, retry, ended.

    `total` is the number of tasks that the play has for each node, 0 where it is not known.
    """

    kind: str
    task: str = ""
    node: str = ""
    message: str = ""
    diff: str = ""
    total: int = 0


@dataclass(frozen=True)
class PlayResult:
    """What came of a playbook run, per node; `failures` maps node -> 'task: message'.

    `running` is the task that each node was in when the play was canceled or ran out of time: it may go on there.
    """

    status: str  # successful | failed | canceled | timeout
    changed: Mapping[str, int] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    unreachable: Mapping[str, str] = field(default_factory=dict)
    changed_tasks: tuple[tuple[str, str], ...] = ()  # (node, task)
    running: Mapping[str, str] = field(default_factory=dict)


class Ansible(Protocol):
    """Runs one of our playbooks by name over nodes with plain role variables."""

    def digest(self, playbook: str) -> str:
        """sha256 (hex) over a playbook and the roles it names: equal digests mean equal work."""

    def run(
        self,
        playbook: str,
        nodes: tuple[str, ...],
        variables: Mapping[str, Mapping[str, Any]],
        *,
        check: bool,
        stop: Stop,
        on_event: Callable[[PlayEvent], None],
        timeout_s: float = 3600.0,
    ) -> PlayResult:
        """`playbook` is a name of playbooks/ without .yml; `variables` maps node -> variables of that node.

        `check` means --check --diff: nothing is changed and events carry diffs. Secrets in `variables` are `Secret`
        values: they are written to a 0600 file of a private directory that is removed afterwards.
        """


@dataclass(frozen=True)
class HttpReply:
    """Status, headers (lower-case names) and body of an answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float = 0.0


class Http(Protocol):
    """Asks an HTTP endpoint from the controller, through the same way as SSH when the address is not routed."""

    def ask(
        self,
        method: str,
        url: str,
        *,
        bearer: Secret | None = None,
        json: Any = None,
        timeout_s: float = 10.0,
        on_line: Callable[[str], None] | None = None,
    ) -> HttpReply:
        """One request. `on_line` receives the lines of a streamed answer. Raises Unreachable when nothing answers."""


class Clock(Protocol):
    """Time: `now` is seconds since the epoch, `monotonic` is for durations."""

    def now(self) -> float:
        """Wall clock, seconds since the epoch."""

    def monotonic(self) -> float:
        """A clock that never goes back, seconds."""
