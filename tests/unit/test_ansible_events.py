"""Raw events of ansible-runner (shapes as core 2.19 and runner 2.4 give them) to PlayEvent and PlayResult."""

from __future__ import annotations

from typing import Any

import pytest

from k3ctl.edge.ansible_events import Recorder
from k3ctl.errors import ConfigError, InternalError
from k3ctl.protocols import PlayEvent


def raw(
    event: str, node: str = "a", task: str = "Do it", res: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    return {"event": event, "event_data": {"host": node, "task": task, "res": res, **more}}


STATS = {"event": "playbook_on_stats", "event_data": {}}


def play(
    *events: dict[str, Any], status: str = "successful", hidden: tuple[str, ...] = ()
) -> tuple[Any, list[PlayEvent]]:
    seen: list[PlayEvent] = []
    recorder = Recorder(seen.append, 7, hidden)
    for event in events:
        assert recorder.handle(event) is False, "a kept raw event could hold a secret"
    return recorder.result(status, "tail of the output"), seen


def test_ok_and_changed_are_counted_per_node() -> None:
    result, seen = play(
        raw("runner_on_start"),
        raw("runner_on_ok", res={"changed": False}),
        raw("runner_on_ok", task="Write", res={"changed": True}),
        raw("runner_on_ok", node="b", task="Write", res={"changed": True}),
        raw("runner_on_ok", node="b", task="Enable", res={"changed": True}),
        raw("runner_on_skipped", node="b", task="Maybe", res={}),
        STATS,
    )
    assert [event.kind for event in seen] == ["task", "ok", "changed", "changed", "changed", "skipped", "ended"]
    assert result.changed == {"a": 1, "b": 2}
    assert result.changed_tasks == (("a", "Write"), ("b", "Write"), ("b", "Enable"))
    assert {event.total for event in seen[:-1]} == {7}
    assert result.running == {}


def test_failure_keeps_stderr_and_status() -> None:
    res = {"msg": "non-zero return code", "rc": 2, "stderr": "line 1\nsysctl: cannot stat", "stdout": "noise"}
    result, seen = play(raw("runner_on_failed", res=res), STATS, status="failed")
    assert result.failures == {"a": "Do it: non-zero return code (status 2)\nline 1\nsysctl: cannot stat"}
    assert seen[0].kind == "failed"


def test_module_that_crashed_shows_its_stderr() -> None:
    res = {"msg": "MODULE FAILURE: see stderr", "module_stderr": "Traceback\nImportError: no apt", "rc": 1}
    result, _ = play(raw("runner_on_failed", res=res), STATS, status="failed")
    assert "ImportError: no apt" in result.failures["a"]


def test_only_the_last_lines_of_a_long_stderr() -> None:
    res = {"msg": "bad", "stderr": "\n".join(f"line {n}" for n in range(100))}
    result, _ = play(raw("runner_on_failed", res=res), STATS, status="failed")
    assert "line 99" in result.failures["a"]
    assert "line 84" not in result.failures["a"]


def test_failure_without_any_message_is_still_a_failure() -> None:
    result, _ = play(raw("runner_on_failed", res={}), STATS, status="failed")
    assert result.failures == {"a": "Do it: no message"}


def test_task_that_gave_up_waiting_shows_what_it_waited_for() -> None:
    res = {"attempts": 2, "rc": 0, "stdout": "{}", "stderr": "waiting for apt (pid 7)"}
    result, _ = play(raw("runner_on_failed", res=res), STATS, status="failed")
    assert result.failures == {"a": "Do it: waiting for apt (pid 7)"}


def test_loop_names_only_the_items_that_failed() -> None:
    items = [{"msg": "fine"}, {"failed": True, "msg": "no such user"}, {"failed": True, "msg": "read-only"}]
    result, _ = play(
        raw("runner_item_on_failed", res=items[1]),
        raw("runner_on_failed", res={"msg": "One or more items failed", "results": items}),
        STATS,
        status="failed",
    )
    assert result.failures == {"a": "Do it: no such user\nread-only"}


def test_unreachable_is_no_failure_of_a_task() -> None:
    res = {"unreachable": True, "msg": "Failed to connect to the host via ssh: Connection refused"}
    result, seen = play(raw("runner_on_unreachable", res=res), STATS, status="failed")
    assert not result.failures
    assert result.unreachable == {"a": res["msg"]}
    assert seen[0].kind == "unreachable"


def test_ignored_failure_is_ok() -> None:
    result, seen = play(raw("runner_on_failed", res={"msg": "x"}, ignore_errors=True), STATS)
    assert not result.failures
    assert seen[0].kind == "ok"


def test_async_result_counts_once() -> None:
    result, seen = play(
        raw("runner_on_async_ok", res={"changed": True}), raw("runner_on_ok", res={"changed": True}), STATS
    )
    assert result.changed == {"a": 1}
    assert [event.kind for event in seen] == ["changed", "ended"]


def test_retry_says_what_it_waits_for() -> None:
    res = {"attempts": 3, "retries": 61, "stdout": "{}", "stderr": "waiting for apt (pid 7)"}
    _, seen = play(raw("runner_retry", res=res), STATS)
    assert seen[0] == PlayEvent("retry", "Do it", "a", "attempt 3 of 60: waiting for apt (pid 7)")


def test_message_of_a_debug_task_is_handed_on() -> None:
    _, seen = play(raw("runner_on_ok", res={"msg": "chrony is left out"}, task_action="ansible.builtin.debug"), STATS)
    assert (seen[0].kind, seen[0].message) == ("ok", "chrony is left out")


def test_result_of_other_modules_is_not_talk() -> None:
    _, seen = play(raw("runner_on_ok", res={"msg": "fine"}, task_action="ansible.builtin.file"), STATS)
    assert seen[0].message == ""


def test_no_log_result_without_fields() -> None:
    _, seen = play(raw("runner_on_ok", res={"censored": "the output has been hidden"}), STATS)
    assert seen[0].kind == "ok"


def test_secret_is_masked_everywhere() -> None:
    res = {
        "changed": True,
        "diff": [{"before": "", "after": "KEY=geheim\n", "before_header": "/f", "after_header": "/f"}],
    }
    result, seen = play(
        raw("runner_on_ok", res=res),
        raw("runner_on_failed", res={"msg": "cannot use geheim", "stderr": "geheim!"}),
        STATS,
        status="failed",
        hidden=("geheim", " ", ""),
    )
    assert "+KEY=***" in seen[0].diff
    assert result.failures["a"] == "Do it: cannot use ***\n***!"


@pytest.mark.parametrize(
    ("diff", "expected"),
    [
        (
            {"before": "a\n", "after": "b\n", "before_header": "/etc/x", "after_header": "/private/y"},
            "--- /etc/x\n+++ /etc/x\n@@ -1 +1 @@\n-a\n+b",
        ),
        (
            {"before": "", "after": "b\n", "after_header": "/private/y"},
            "--- /dev/null\n+++ /private/y\n@@ -0,0 +1 @@\n+b",
        ),
        (
            {"before": {"path": "/d", "state": "absent"}, "after": {"path": "/d", "state": "directory"}},
            "/d state: absent -> directory",
        ),
        ({"prepared": "apt says\n"}, "apt says"),
        ([{"before": "x", "after": "x"}, {"before_header": "only"}], ""),
        ({"before": "\n" * 10, "after": "\n".join(str(n) for n in range(900))}, None),
    ],
)
def test_diff_forms(diff: Any, expected: str | None) -> None:
    _, seen = play(raw("runner_on_ok", res={"changed": True, "diff": diff}), STATS)
    if expected is None:
        assert seen[0].diff.splitlines()[-1].endswith("more lines")
    else:
        assert seen[0].diff == expected


def test_template_diff_names_the_file_on_the_host() -> None:
    diff = [{"before": "", "after": "b\n", "after_header": "/private/tmp/x.j2"}]
    res = {"changed": True, "diff": diff, "invocation": {"module_args": {"dest": "/etc/x.conf"}}}
    _, seen = play(raw("runner_on_ok", res=res), STATS)
    assert seen[0].diff.splitlines()[1] == "+++ /etc/x.conf"


def test_refused_variables_are_a_configuration_error_for_each_node() -> None:
    res = {
        "msg": "Validation of arguments failed:\nvalue of engine_state must be one of: present, absent, got: no",
        "argument_errors": ["value of engine_state must be one of: present, absent, got: no"],
        "validate_args_context": {"type": "role", "name": "engine"},
    }
    with pytest.raises(ConfigError) as caught:
        play(raw("runner_on_failed", res=res), raw("runner_on_failed", node="b", res=res), STATS, status="failed")
    assert [problem.node for problem in caught.value.problems] == ["a", "b"]
    assert caught.value.problems[0].what == "role engine refuses its variables"
    assert "got: no" in caught.value.problems[0].found


def test_play_that_never_began_is_an_internal_error_with_its_output() -> None:
    with pytest.raises(InternalError) as caught:
        play(status="failed")
    assert caught.value.problems[0].evidence == "tail of the output"


def test_canceled_play_says_what_was_running() -> None:
    result, _ = play(
        raw("runner_on_start", task="Install packages"),
        raw("runner_on_start", node="b"),
        raw("runner_on_ok", node="b", res={}),
        status="canceled",
    )
    assert result.running == {"a": "Install packages"}


def test_error_in_the_listener_surfaces_after_the_play() -> None:
    def broken(event: PlayEvent) -> None:
        raise RuntimeError("view is broken")

    recorder = Recorder(broken, 0)
    assert recorder.handle(raw("runner_on_ok", res={})) is False
    with pytest.raises(RuntimeError, match="view is broken"):
        recorder.result("successful", "")


def test_unknown_and_empty_events_are_passed_over() -> None:
    _, seen = play({"event": "verbose"}, {}, raw("runner_on_file_diff", res=None), STATS)
    assert [event.kind for event in seen] == ["ended"]
