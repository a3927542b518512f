"""A real completion of very few tokens: the only proof that the engine can compute.

vLLM answers /health and /v1/models with 200 while a remote rank is dead, until a request touches the engine.
"""

from __future__ import annotations

import json
from typing import Any

from k3ctl.errors import Unreachable
from k3ctl.protocols import Http, HttpReply
from k3ctl.secret import Secret
from k3ctl.watch.cluster_status import Answer

TOKENS = 2


def canary(http: Http, endpoint: str, model: str, key: Secret | None, timeout_s: float) -> Answer:
    """Ask for a completion. Never raises: an endpoint that does not answer is an answer too."""
    body = {"model": model, "prompt": "1", "max_tokens": TOKENS, "temperature": 0}
    try:
        reply = http.ask("POST", f"{endpoint}/v1/completions", bearer=key, json=body, timeout_s=timeout_s)
    except Unreachable as error:
        return Answer(ok=False, seconds=0.0, detail=str(error))
    return judge(reply)


def judge(reply: HttpReply) -> Answer:
    """Only status 200 with a choice counts."""
    if reply.status != 200:
        return Answer(ok=False, seconds=reply.seconds, detail=f"status {reply.status}: {error_text(reply.body)}")
    body = parsed(reply.body)
    choices = body.get("choices") if isinstance(body, dict) else None
    if not choices:
        return Answer(ok=False, seconds=reply.seconds, detail="status 200 without a completion in it")
    return Answer(ok=True, seconds=reply.seconds, detail="")


def parsed(body: bytes) -> Any:
    """The body as JSON, None when it is none."""
    try:
        return json.loads(body)
    except ValueError:
        return None


def error_text(body: bytes) -> str:
    """The message of an OpenAI-style error, or the start of the body."""
    value = parsed(body)
    if isinstance(value, dict):
        error = value.get("error", value)
        if isinstance(error, dict) and isinstance(error.get("message"), str):
            return str(error["message"])[:300]
        if isinstance(error, str):
            return error[:300]
    return body.decode("utf-8", "replace").strip()[:300]
