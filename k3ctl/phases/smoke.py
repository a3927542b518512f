"""Smoke test: a chat completion, streaming, and requests that must be refused, through the real endpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from k3ctl import units
from k3ctl.errors import PhaseFailed, Problem, Unreachable
from k3ctl.phases.api_key import known_key
from k3ctl.phases.base import Assessment, Change, Outcome, Work
from k3ctl.phases.launch import Launched
from k3ctl.phases.ready import Served
from k3ctl.protocols import HttpReply
from k3ctl.secret import Secret
from k3ctl.watch.smoke_checks import PROMPT, Check, chat_body, judge_chat, judge_refusal, judge_stream

NOTE = "smoke"
WRONG_KEY = Secret("not-the-key")


@dataclass(frozen=True)
class SmokeResult:
    """What the endpoint answered; `question` and `answer` are the chat's."""

    endpoint: str
    model: str
    question: str
    answer: str
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Smoke:
    """Passed once for a launch, it is not repeated as long as that launch answers."""

    name: str = "smoke"
    title: str = "Smoke test of the endpoint"
    needs: tuple[str, ...] = ("ready",)
    scope: Literal["host", "gang"] = "gang"
    essential: bool = False

    def assess(self, work: Work) -> Assessment:
        """Look whether this very launch passed before and answers now."""
        note = _note(work)
        launch = _value(work, Launched)
        served = _value(work, Served)
        asked = self.name in work.options.only
        if note and launch and served and note.get("launch_id") == launch.launch_id and not asked:
            text = f"passed for launch {launch.launch_id[:8]} before, and it answers"
            return Assessment(text, value=SmokeResult(work.plan.endpoint, work.plan.model.served_name, PROMPT,
                                                      str(note.get("answer", "")), ()))  # fmt: skip
        checks = (
            "chat completion",
            "streaming",
            "unknown model is refused",
            "bad parameter is refused",
            "no key is refused",
        )
        return Assessment("not tested yet", tuple(Change(f"test: {check}") for check in checks))

    def apply(self, work: Work, assessment: Assessment) -> Outcome:  # noqa: ARG002 - the protocol's signature
        """All requests, one after the other; every failure is kept."""
        result = test(work)
        failed = [check for check in result.checks if not check.ok]
        if failed:
            raise PhaseFailed(
                *(
                    Problem(
                        what=f"smoke test failed: {check.name}",
                        found=check.found,
                        expected=check.expected,
                        fix="see `k3ctl logs` of rank 0",
                        node=work.plan.head.name,
                    )
                    for check in failed
                )
            )
        launch = _value(work, Launched)
        if launch:
            work.world.store.keep(NOTE, json.dumps({"launch_id": launch.launch_id, "answer": result.answer}))
        slowest = max(check.seconds for check in result.checks)
        said = f"{len(result.checks)} checks passed, the slowest took {units.duration(slowest)}"
        return Outcome("changed", said, value=result)


def test(work: Work) -> SmokeResult:
    """Ask everything and judge. Raises Unreachable when the endpoint goes away in between."""
    plan, key = work.plan, known_key(work)
    url, model = f"{plan.endpoint}/v1/chat/completions", plan.model.served_name

    def ask(body: Any, bearer: Secret | None = key, lines: list[str] | None = None) -> HttpReply:
        on_line = None if lines is None else lines.append
        try:
            return work.world.http.ask(
                "POST", url, bearer=bearer, json=body, timeout_s=plan.timeouts.canary, on_line=on_line
            )
        except Unreachable as error:
            return HttpReply(0, {}, str(error).encode())

    chat, answer = judge_chat(ask(chat_body(model, stream=False)))
    lines: list[str] = []
    streaming = judge_stream(ask(chat_body(model, stream=True), lines=lines), lines)
    bad = {**chat_body(model, stream=False), "max_tokens": -1}
    checks = (
        chat,
        streaming,
        judge_refusal("unknown model is refused", ask(chat_body("no-such-model", stream=False)), (404, 400)),
        judge_refusal("bad parameter is refused", ask(bad), (400, 422)),
        judge_refusal("wrong key is refused", ask(chat_body(model, stream=False), WRONG_KEY), (401, 403)),
        judge_refusal("no key is refused", ask(chat_body(model, stream=False), None), (401, 403)),
    )
    return SmokeResult(plan.endpoint, model, PROMPT, answer, checks)


def _note(work: Work) -> dict[str, Any]:
    try:
        value = json.loads(work.world.store.note(NOTE) or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _value(work: Work, kind: type[Any]) -> Any:
    """What an earlier phase left of that type; None when it did not run."""
    return next((o.value for o in work.done.values() if isinstance(o.value, kind)), None)
