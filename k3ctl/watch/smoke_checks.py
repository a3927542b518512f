"""What the smoke test asks of the endpoint, and how each answer is judged. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from k3ctl.protocols import HttpReply
from k3ctl.watch.canary import error_text, parsed

PROMPT = "Say hello."
TOKENS = 16


@dataclass(frozen=True)
class Check:
    """One finding of the smoke test: `found` is what came, `expected` what should have."""

    name: str
    ok: bool
    found: str
    expected: str
    seconds: float = 0.0


def chat_body(model: str, *, stream: bool) -> dict[str, Any]:
    """A short chat completion."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": PROMPT}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "stream": stream,
    }


def judge_chat(reply: HttpReply) -> tuple[Check, str]:
    """Status 200, a choice with text, and a count of tokens; with the text itself."""
    body = parsed(reply.body)
    text, tokens = _content(body), 0
    if isinstance(body, dict) and isinstance(body.get("usage"), dict):
        tokens = int(body["usage"].get("completion_tokens") or 0)
    ok = reply.status == 200 and text is not None and tokens > 0
    found = f"status {reply.status}, {tokens} tokens" if reply.status == 200 else _failed(reply)
    return Check("chat completion", ok, found, "status 200 with an answer", reply.seconds), text or ""


def judge_stream(reply: HttpReply, lines: list[str]) -> Check:
    """Server-sent events: more than one chunk with content, `[DONE]` last, no error between."""
    data = [line[5:].strip() for line in lines if line.startswith("data:")]
    chunks = [value for value in (_json(text) for text in data if text != "[DONE]") if value is not None]
    pieces = [chunk for chunk in chunks if _delta(chunk)]
    ended = bool(data) and data[-1] == "[DONE]"
    errors = [chunk for chunk in chunks if isinstance(chunk, dict) and "error" in chunk]
    ok = reply.status == 200 and ended and len(pieces) > 1 and not errors
    found = f"{len(pieces)} chunks, {'ends' if ended else 'does not end'} with [DONE]"
    return Check(
        "streaming",
        ok,
        found if reply.status == 200 else _failed(reply),
        "more than one chunk, then [DONE]",
        reply.seconds,
    )


def judge_refusal(name: str, reply: HttpReply, statuses: tuple[int, ...]) -> Check:
    """A bad request must be refused with one of these statuses, and the server must not break over it."""
    expected = " or ".join(str(status) for status in statuses)
    return Check(name, reply.status in statuses, _failed(reply), f"status {expected}", reply.seconds)


def _failed(reply: HttpReply) -> str:
    return f"status {reply.status}: {error_text(reply.body)}"


def _content(body: Any) -> str | None:
    try:
        message = body["choices"][0]["message"]
    except (TypeError, KeyError, IndexError):
        return None
    for key in ("content", "reasoning_content", "reasoning"):
        if isinstance(message.get(key), str):
            return str(message[key])
    return None


def _delta(chunk: Any) -> bool:
    """True for a chunk that carries text (of the answer or of the reasoning)."""
    try:
        delta = chunk["choices"][0]["delta"]
    except (TypeError, KeyError, IndexError):
        return False
    return any(delta.get(key) for key in ("content", "reasoning_content", "reasoning"))


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
