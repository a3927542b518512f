"""From ansible-runner's raw events to PlayEvent and PlayResult. Nothing behind this file sees a raw event."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from k3ctl.errors import ConfigError, InternalError, Problem
from k3ctl.protocols import PlayEvent, PlayResult

MASK = "***"
MESSAGE_LINES = 15
DIFF_LINES = 200
_SAYING = ("debug", "ansible.builtin.debug")
_INVALID = "Validation of arguments failed"


class Recorder:
    """Takes the events of one play, hands on typed ones and adds them up. `hidden` are texts that must not be shown."""

    def __init__(self, on_event: Callable[[PlayEvent], None], total: int, hidden: tuple[str, ...] = ()) -> None:
        self._on_event = on_event
        self._total = total
        self._hidden = tuple(sorted((text for text in hidden if text.strip()), key=len, reverse=True))
        self._failures: dict[str, str] = {}
        self._unreachable: dict[str, str] = {}
        self._changed: list[tuple[str, str]] = []
        self._running: dict[str, str] = {}
        self._refused: list[Problem] = []
        self._ended = False
        self._error: Exception | None = None

    def handle(self, raw: Mapping[str, Any]) -> bool:
        """ansible-runner's event_handler. False: no raw event is kept on disk, where it could hold a secret.

        An exception here would abort the play in the middle, so the first one is kept and raised by `result`.
        """
        try:
            event = self._event(str(raw.get("event", "")), raw.get("event_data") or {})
            if event is not None:
                self._on_event(event)
        except Exception as error:  # noqa: BLE001
            self._error = self._error or error
        return False

    def result(self, status: str, output: str) -> PlayResult:
        """What came of the play. `output` is the tail of Ansible's own text, for plays that never began.

        Raises ConfigError when a role refused its variables, InternalError when the play did not start.
        """
        if self._error is not None:
            raise self._error
        if self._refused:
            raise ConfigError(*sorted(self._refused, key=lambda problem: problem.node))
        if status == "failed" and not self._ended:
            raise InternalError(
                Problem(
                    what="Ansible could not start the play", evidence=self._mask(output), fix="report this as a bug"
                )
            )
        self._on_event(PlayEvent("ended", message=status))
        changed: dict[str, int] = {}
        for node, _ in self._changed:
            changed[node] = changed.get(node, 0) + 1
        stopped = status in ("canceled", "timeout")
        return PlayResult(
            status=status,
            changed=changed,
            failures=self._failures,
            unreachable=self._unreachable,
            changed_tasks=tuple(self._changed),
            running=dict(self._running) if stopped else {},
        )

    def _event(self, kind: str, data: Mapping[str, Any]) -> PlayEvent | None:
        if kind == "playbook_on_stats":
            self._ended = True
            return None
        node, task = str(data.get("host", "")), str(data.get("task", ""))
        result = data.get("res") or {}
        if kind == "runner_on_start":
            self._running[node] = task
            return PlayEvent("task", task, node, total=self._total)
        if kind == "runner_retry":
            return PlayEvent("retry", task, node, self._mask(_retry(result)))
        if kind in ("runner_on_ok", "runner_on_skipped", "runner_on_failed", "runner_on_unreachable"):
            self._running.pop(node, None)
            return self._end_of_task(kind.removeprefix("runner_on_"), task, node, data, result)
        return None  # items of loops, async polls and includes come again in the result of their task

    def _end_of_task(
        self, kind: str, task: str, node: str, data: Mapping[str, Any], result: Mapping[str, Any]
    ) -> PlayEvent:
        if kind == "failed" and data.get("ignore_errors"):
            kind = "ok"
        said = str(result.get("msg") or "") if data.get("task_action") in _SAYING else ""
        if kind == "ok" and result.get("changed"):
            self._changed.append((node, task))
            return PlayEvent("changed", task, node, self._mask(said), self._mask(_diff(result)), self._total)
        if kind in ("ok", "skipped"):
            return PlayEvent(kind, task, node, self._mask(said) if kind == "ok" else "", total=self._total)
        message = self._mask(_message(result))
        if kind == "unreachable":
            self._unreachable[node] = message
        else:
            self._failures[node] = f"{task}: {message}"
            if str(result.get("msg", "")).startswith(_INVALID):
                self._refused.append(_refusal(node, task, result, self._mask))
        return PlayEvent(kind, task, node, message, total=self._total)

    def _mask(self, text: str) -> str:
        for secret in self._hidden:
            text = text.replace(secret, MASK)
        return text


def _message(result: Mapping[str, Any]) -> str:
    """The reason of a failure, then the last lines of what the module or the command wrote to stderr."""
    failed = [item for item in result.get("results", ()) if isinstance(item, Mapping) and item.get("failed")]
    if failed:
        return "\n".join(_message(item) for item in failed)
    reason = str(result.get("msg") or result.get("reason") or result.get("stderr") or "no message").strip()
    parts = [reason]
    for key in ("module_stderr", "stderr", "module_stdout"):
        text = str(result.get(key) or "").strip()
        if text and text not in reason:
            parts.append("\n".join(text.splitlines()[-MESSAGE_LINES:]))
            break
    if "rc" in result and result["rc"] not in (0, None):
        parts[0] += f" (status {result['rc']})" if "rc" not in reason else ""
    return "\n".join(parts)


def _retry(result: Mapping[str, Any]) -> str:
    """What a retried task waits for: 'attempt 3 of 60: the module's message'."""
    said = str(result.get("msg") or result.get("stderr") or result.get("stdout") or "").strip()
    return f"attempt {result.get('attempts', '?')} of {max(0, int(result.get('retries', 1)) - 1)}: {said}".strip(": ")


def _diff(result: Mapping[str, Any]) -> str:
    """A unified diff of all that --diff showed for a task; loops have one per item."""
    lines: list[str] = []
    for part in (result, *(item for item in result.get("results", ()) if isinstance(item, Mapping))):
        diff = part.get("diff")
        entries = diff if isinstance(diff, list) else [diff] if diff else []
        lines += [line for entry in entries if isinstance(entry, Mapping) for line in _diff_lines(entry, _path(part))]
    if len(lines) > DIFF_LINES:
        lines = [*lines[:DIFF_LINES], f"... {len(lines) - DIFF_LINES} more lines"]
    return "\n".join(lines)


def _path(result: Mapping[str, Any]) -> str:
    """The file on the host that a result is about. A template's own header names a temporary file on the controller."""
    arguments = (result.get("invocation") or {}).get("module_args") or {}
    for source in (result, arguments):
        for key in ("dest", "path"):
            if source.get(key):
                return str(source[key])
    return ""


def _diff_lines(entry: Mapping[str, Any], path: str) -> list[str]:
    if entry.get("prepared"):
        return str(entry["prepared"]).strip().splitlines()
    before, after = entry.get("before", ""), entry.get("after", "")
    if isinstance(before, Mapping) and isinstance(after, Mapping):  # file modules: only attributes
        keys = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
        name = after.get("path") or before.get("path") or path
        return [f"{name} {key}: {before.get(key, '-')} -> {after.get(key, '-')}".strip() for key in keys]
    header = str(entry.get("before_header") or "")
    name = path or header or str(entry.get("after_header") or "")
    old, new = str(before).splitlines(), str(after).splitlines()
    return list(difflib.unified_diff(old, new, name if header else "/dev/null", name, lineterm=""))


def _refusal(node: str, task: str, result: Mapping[str, Any], mask: Callable[[str], str]) -> Problem:
    errors = result.get("argument_errors") or [result.get("msg", "")]
    context = result.get("validate_args_context") or {}
    role = str(context.get("name") or task)
    return Problem(
        what=f"role {role} refuses its variables",
        found=mask("; ".join(str(error) for error in errors)),
        expected=f"what roles/{role}/meta/argument_specs.yml says",
        fix="correct the variable in the inventory's group_vars or host_vars",
        node=node,
    )
