"""A request as the routes see it, and the answer they give."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

from k3ctl.lab.hub.ranges import Span, select

_JSON = "application/json; charset=utf-8"


@dataclass(frozen=True)
class Request:
    """One request. `path` is as it came (quoted, no query); header names are lower case; `base` is scheme and host."""

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    base: str = ""
    cdn_base: str = ""
    now: float = 0.0

    @property
    def segments(self) -> list[str]:
        """The parts of the path, unquoted one by one: a branch name may hold a quoted slash."""
        return [unquote(part) for part in self.path.split("/")[1:]]

    @property
    def token(self) -> str:
        """The bearer token, or empty."""
        kind, _, value = self.headers.get("authorization", "").partition(" ")
        return value.strip() if kind.lower() == "bearer" else ""

    def asked(self, name: str, otherwise: str = "") -> str:
        """One value of the query."""
        return parse_qs(self.query).get(name, [otherwise])[-1]


@dataclass(frozen=True)
class FilePart:
    """The bytes of a file that a body carries."""

    path: Path
    span: Span


@dataclass(frozen=True)
class Reply:
    """An answer. A body is bytes, or part of a file on disk that the kernel sends without copying."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | FilePart = b""


def json_reply(value: Any, headers: Mapping[str, str] | None = None) -> Reply:
    """200 with a JSON body."""
    return Reply(
        200, {"Content-Type": "application/json; charset=utf-8", **(headers or {})}, json.dumps(value).encode()
    )


def error_reply(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> Reply:
    """An error as the hub words it: the kind in X-Error-Code, the reason in X-Error-Message and in the body."""
    said = {"Content-Type": _JSON, "X-Error-Message": message}
    if code:
        said["X-Error-Code"] = code
    return Reply(status, {**said, **(headers or {})}, json.dumps({"error": message}).encode())


def file_reply(request: Request, file: Path, etag: str, headers: Mapping[str, str]) -> Reply:
    """A file or the part of it that Range asks for."""
    size = file.stat().st_size
    span = select(request.headers.get("range"), size, etag=etag, if_range=request.headers.get("if-range"))
    said = {"Accept-Ranges": "bytes", "ETag": etag, "Content-Type": "application/octet-stream", **headers}
    if span.content_range:
        said["Content-Range"] = span.content_range
    return Reply(span.status, said, b"" if span.status == 416 else FilePart(file, span))
