"""What an answer to a range request means: bytes to believe, a reason to try again, or a reason to stop.

Pure: status and headers in, nothing or an exception out. Header names are lower-case.
"""

from __future__ import annotations

import email.utils
import re
import time
from typing import Any, Dict, Optional

REDIRECTS = (301, 302, 303, 307, 308)
_RANGE = re.compile(r"^bytes (\d+)-(\d+)/(\d+|\*)$")
_SHA256 = re.compile(r"^[0-9a-f]{64}$")


class Cut(Exception):
    """This try failed; another may do: the same byte is asked for again."""


class Pause(Cut):
    """The source asks to wait."""

    def __init__(self, seconds: float, why: str) -> None:
        super().__init__(why)
        self.seconds = seconds


class Stale(Cut):
    """A signed URL is refused: it is asked for anew."""


class Odd(Cut):
    """An answer that does not fit the question: believed never, retried a few times."""


class Refused(Exception):
    """This source cannot serve the job; trying again changes nothing."""


class NoRange(Exception):
    """This source answers a request for a part with the whole: it cannot resume."""


def judge(status: int, headers: Dict[str, str], ask: Dict[str, Any]) -> None:
    """Raise unless the body that follows is exactly the bytes asked for.

    `ask`: path, first, last (bytes, last included), size (of the whole file), token (was one sent), signed (is it a
    URL that the source handed out).
    """
    if status not in (200, 206):
        raise _failure(status, headers, ask)
    _judge_body(headers, ask)
    if status == 206:
        _judge_range(headers, ask)
    else:
        _judge_whole(headers, ask)


def _judge_body(headers: Dict[str, str], ask: Dict[str, Any]) -> None:
    """A body that somebody on the way has altered or replaced is not the file."""
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise Refused(
            "the content comes %s-encoded although plain bytes were asked for: a proxy alters content" % encoding
        )
    kind = headers.get("content-type", "").split(";")[0].strip().lower()
    if kind == "text/html" and not ask["path"].lower().endswith((".html", ".htm")):
        raise Refused("a web page came in place of %s: a login page or a proxy stands in the way" % ask["path"])


def _judge_range(headers: Dict[str, str], ask: Dict[str, Any]) -> None:
    text = headers.get("content-range", "")
    match = _RANGE.match(text.strip())
    if not match:
        raise Odd("206 without a usable Content-Range (%r)" % text)
    first, last, size = match.groups()
    if size != "*" and int(size) != ask["size"]:
        raise Refused("%s has another size: listing %d, source %s" % (ask["path"], ask["size"], size))
    if (int(first), int(last)) != (ask["first"], ask["last"]):
        raise Odd("bytes %s-%s came, %d-%d were asked for" % (first, last, ask["first"], ask["last"]))


def _judge_whole(headers: Dict[str, str], ask: Dict[str, Any]) -> None:
    """200 is the whole file: good when the whole was asked for, else a sign that ranges are ignored."""
    length = headers.get("content-length")
    if length is not None and length.isdigit() and int(length) != ask["size"]:
        raise Refused("%s has another size: listing %d, source %s" % (ask["path"], ask["size"], length))
    if (ask["first"], ask["last"]) != (0, ask["size"] - 1):
        raise NoRange("the whole file came in place of bytes %d-%d" % (ask["first"], ask["last"]))


def _failure(status: int, headers: Dict[str, str], ask: Dict[str, Any]) -> Exception:
    """The exception for a status that brings no bytes."""
    code = headers.get("x-error-code", "")
    said = headers.get("x-error-message", "")
    more = ": ".join(text for text in (code, said) if text)
    tail = " (%s)" % more if more else ""
    if ask["signed"] and status in (400, 401, 403, 404, 410):
        return Stale("signed URL refused with %d" % status)
    if status in REDIRECTS:
        return Stale("moved (%d)" % status)
    if status == 429 or (status == 503 and "retry-after" in headers):
        return Pause(retry_after(headers), "%d: the source asks to wait%s" % (status, tail))
    if status == 408 or status >= 500:
        return Cut("status %d%s" % (status, tail))
    why = {
        401: "the token is refused" if ask["token"] else "it needs a token, or does not exist",
        403: "its terms are not accepted" if code == "GatedRepo" else "forbidden",
        404: "not there at this commit",
        416: "the source has another size than the listing (%d)" % ask["size"],
    }.get(status, "no bytes")
    return Refused("status %d for %s: %s%s" % (status, ask["path"], why, tail))


def judge_listing(headers: Dict[str, str], entry: Dict[str, Any], commit: str) -> None:
    """What a hub says about a file when it hands out its address must agree with the manifest."""
    said = headers.get("x-repo-commit", "")
    if said and commit and said != commit:
        raise Refused("the source answers for commit %s, %s was asked for" % (said[:12], commit[:12]))
    size = headers.get("x-linked-size", "")
    if size.isdigit() and int(size) != entry["size"]:
        raise Refused("%s has another size: listing %d, source %s" % (entry["path"], entry["size"], size))
    etag = clean_etag(headers.get("x-linked-etag", ""))
    if entry.get("sha256") and _SHA256.match(etag) and etag != entry["sha256"]:
        raise Refused("%s has another sha256: listing %s, source %s" % (entry["path"], entry["sha256"][:12], etag[:12]))


def clean_etag(text: str) -> str:
    """An ETag without W/ and quotes."""
    text = text.strip()
    return (text[2:] if text.startswith("W/") else text).strip('"').lower()


def retry_after(headers: Dict[str, str], now: Optional[float] = None) -> float:
    """Seconds to wait, from Retry-After (seconds or a date) or RateLimit (t=seconds); 10 when it does not say."""
    text = headers.get("retry-after", "").strip()
    if re.match(r"^\d+(\.\d+)?$", text):
        return min(float(text), 3600.0)
    if text:
        try:
            when = email.utils.parsedate_to_datetime(text).timestamp()
            return min(max(when - (time.time() if now is None else now), 0.0), 3600.0)
        except (TypeError, ValueError):
            pass
    match = re.search(r"\bt=(\d+)", headers.get("ratelimit", ""))
    return min(float(match.group(1)), 3600.0) if match else 10.0
