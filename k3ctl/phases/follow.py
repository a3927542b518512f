"""Follow transient units on a node from the controller until they end; they need the controller for nothing."""

from __future__ import annotations

from collections.abc import Callable

from k3ctl.errors import AgentFailed, Interrupted, PhaseFailed, Problem, Unreachable
from k3ctl.phases.base import Work
from k3ctl.staging.progress import Snapshot
from k3ctl.units import duration

FIRST_POLLS_S = (0.2, 0.3, 0.5)
POLL_S = 0.8
LOST_LIMIT_S = 180.0
LOST_WAIT_S = 5.0


def follow(work: Work, node: str, ask: Callable[[], Snapshot], units: str) -> Snapshot:
    """Ask until the units of one node have ended; the last snapshot, which is complete.

    `units` is one name or a pattern of names, as systemctl takes it.

    Raises PhaseFailed with the agent's reason, Unreachable after three minutes without contact, and Interrupted when
    the user asked to stop: the units go on then, and the error says how to end them.
    """
    contact = _Contact(work, node)
    polls = 0
    while True:
        snapshot = contact.ask(ask)
        if snapshot is not None:
            work.report.progress(node, snapshot.done, snapshot.total, "B", snapshot.text)
            if snapshot.state == "complete":
                return snapshot
            if snapshot.state != "running":
                raise _ended(node, snapshot, units)
        wait = LOST_WAIT_S if snapshot is None else (FIRST_POLLS_S[polls] if polls < len(FIRST_POLLS_S) else POLL_S)
        polls += 1
        if work.stop.wait(wait):
            raise goes_on(node, units)


class _Contact:
    """Asks over a line that may break: once it says that it did, and once that it is back."""

    def __init__(self, work: Work, node: str) -> None:
        self._work = work
        self._node = node
        self._since: float | None = None

    def ask(self, ask: Callable[[], Snapshot]) -> Snapshot | None:
        """A snapshot, or None while the node cannot be asked."""
        now = self._work.world.clock.monotonic
        try:
            snapshot = ask()
        except (Unreachable, AgentFailed) as error:
            problem = error.problems[0]
            if self._since is None:
                self._since = now()
                text = f"lost contact ({problem.found or problem.what}); the work there goes on, asking again for "
                self._work.report.say(text + duration(LOST_LIMIT_S), node=self._node, level="warn")
            if now() - self._since > LOST_LIMIT_S:
                raise
            return None
        if self._since is not None:
            self._work.report.say(f"answers again after {duration(now() - self._since)}", node=self._node)
            self._since = None
        return snapshot


def goes_on(node: str, units: str) -> Interrupted:
    """The error of a user's stop: what still runs, and how to end it."""
    return Interrupted(
        Problem(
            what=f"{units} goes on by itself",
            fix=f"run the same command again to see it; to end it: systemctl stop '{units}'",
            node=node,
        )
    )


def not_begun(node: str) -> Interrupted:
    """The error of a user's stop that came before anything was started."""
    return Interrupted(Problem(what="stopped before anything was started here", node=node))


def _ended(node: str, snapshot: Snapshot, units: str) -> PhaseFailed:
    fixes = {
        "stopped": "run the same command again: what was fetched is kept",
        "failed": f"remove the cause and run again: what was fetched is kept (more: journalctl -u '{units}')",
    }
    return PhaseFailed(
        Problem(
            what=f"the work ended: {snapshot.reason or snapshot.state}",
            found=f"{snapshot.done} of {snapshot.total} bytes done, {snapshot.retries} retries",
            fix=fixes[snapshot.state],
            node=node,
            evidence=snapshot.evidence,
        )
    )
