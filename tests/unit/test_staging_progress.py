"""Status replies of the agent as one snapshot and one line."""

from __future__ import annotations

from typing import Any

import pytest

from k3ctl.errors import AgentFailed
from k3ctl.staging.progress import Snapshot, read_snapshot


def unit(*, active: bool, complete: bool = False, status: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"unit": "u.service", "active": active, "complete": complete, "status": status, **more}


def snapshot(*stages: dict[str, Any]) -> Snapshot:
    return read_snapshot({"stages": list(stages)})


RUNNING = {"state": "running", "done": 400, "total": 1000, "rate": 60.0, "files": 4, "sealed": 1, "retries": 3}


def test_line_for_people() -> None:
    assert snapshot(unit(active=True, status=RUNNING)).text == "60 B/s, ETA 10 s, proven 1/4, retries 3"
    silent = {**RUNNING, "silent_s": 12.0, "recent": ["12:00:00 x", "12:00:01 status 503"], "note": "hm"}
    text = snapshot(unit(active=True, status=silent)).text
    assert text == "proven 1/4, retries 3, no byte for 12 s, last: 12:00:01 status 503, hm"
    assert snapshot(unit(active=True)).text == ""


def test_several_units_are_one_node() -> None:
    over = unit(active=False, complete=True, status={"state": "complete", "done": 5, "total": 5, "fetched": 5})
    both = snapshot(unit(active=True, status=RUNNING), over)
    assert (both.state, both.done, both.total) == ("running", 405, 1005)
    assert snapshot(over, over).state == "complete"
    failed = unit(active=False, status={"state": "failed", "reason": "why", "done": 1, "total": 9}, events=["e"])
    assert snapshot(failed, over).reason == "why"
    assert snapshot(failed, over).evidence == "e"
    # One that fails is told when the others have ended: they are not held up.
    assert snapshot(failed, unit(active=True, status=RUNNING)).state == "running"


@pytest.mark.parametrize(
    ("stage", "state", "words"),
    [
        (unit(active=False, status={"state": "stopped"}), "stopped", "it was stopped"),
        (
            unit(active=False, status={"state": "running"}, result="signal", restarts=2),
            "failed",
            "result signal, 2 restarts",
        ),
        (unit(active=False, status=None), "failed", "while it said nothing"),
        (
            unit(active=False, status={"state": "starting"}, held="another agent: pid 7"),
            "failed",
            "another agent: pid 7",
        ),
        # A restart is on its way: systemd calls the unit active, whatever the last words were.
        (unit(active=True, status={"state": "failed", "reason": "internal"}), "running", ""),
        # A record of an earlier proof counts for nothing while the unit works on it.
        (unit(active=True, complete=True, status=RUNNING), "running", ""),
        (unit(active=False, complete=True, status=None), "complete", ""),
    ],
)
def test_words_of_the_agent_and_of_systemd(stage: dict[str, Any], state: str, words: str) -> None:
    found = snapshot(stage)
    assert found.state == state
    assert words in found.reason


@pytest.mark.parametrize(
    "reply", [{}, {"stages": []}, {"stages": [{}]}, {"stages": [unit(active=True, status={"done": "x"})]}]
)
def test_nonsense(reply: dict[str, Any]) -> None:
    with pytest.raises(AgentFailed):
        read_snapshot(reply)
