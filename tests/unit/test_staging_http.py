"""Answers to range requests, judged: a table of status and headers."""

from __future__ import annotations

import time
from typing import Any

import pytest

from k3ctl.node.httpjudge import Cut, NoRange, Odd, Pause, Refused, Stale, clean_etag, judge, judge_listing, retry_after
from k3ctl.node.link import Link, bare, origin_of
from k3ctl.node.source import life_of

SIZE = 1000


def ask(**more: Any) -> dict[str, Any]:
    return {"path": "a.safetensors", "first": 100, "last": 199, "size": SIZE, "token": False, "signed": False, **more}


GOOD = {"content-range": f"bytes 100-199/{SIZE}", "content-length": "100"}


def test_good_answers() -> None:
    judge(206, GOOD, ask())
    judge(206, {"content-range": "bytes 100-199/*"}, ask())
    judge(206, {**GOOD, "content-encoding": "identity", "content-type": "text/plain"}, ask())
    judge(200, {"content-length": "1000"}, ask(first=0, last=999))
    judge(200, {}, ask(first=0, last=999))
    judge(200, {"content-type": "text/html"}, ask(path="a.html", first=0, last=999))


@pytest.mark.parametrize(
    ("status", "headers", "more", "kind", "words"),
    [
        (206, {}, {}, Odd, "without a usable Content-Range"),
        (206, {"content-range": "items 1-2/3"}, {}, Odd, "without a usable"),
        (206, {"content-range": f"bytes 100-198/{SIZE}"}, {}, Odd, "bytes 100-198 came, 100-199 were asked for"),
        (206, {"content-range": f"bytes 0-99/{SIZE}"}, {}, Odd, "bytes 0-99 came"),
        (206, {"content-range": "bytes 100-199/1001"}, {}, Refused, "listing 1000, source 1001"),
        (206, {**GOOD, "content-encoding": "gzip"}, {}, Refused, "gzip-encoded"),
        (206, {**GOOD, "content-type": "text/html; charset=x"}, {}, Refused, "a web page"),
        (200, {"content-length": "1000"}, {}, NoRange, "the whole file came"),
        (200, {"content-length": "999"}, {}, Refused, "listing 1000, source 999"),
        (200, {"content-length": "999"}, {"first": 0, "last": 999}, Refused, "source 999"),
        (401, {}, {}, Refused, "needs a token, or does not exist"),
        (401, {}, {"token": True}, Refused, "the token is refused"),
        (403, {"x-error-code": "GatedRepo"}, {"token": True}, Refused, "terms are not accepted"),
        (403, {}, {}, Refused, "forbidden"),
        (403, {}, {"signed": True}, Stale, "403"),
        (404, {"x-error-code": "EntryNotFound"}, {}, Refused, "EntryNotFound"),
        (404, {}, {"signed": True}, Stale, "404"),
        (302, {}, {}, Stale, "moved"),
        (408, {}, {}, Cut, "408"),
        (416, {}, {}, Refused, "another size than the listing (1000)"),
        (429, {"retry-after": "7"}, {}, Pause, "asks to wait"),
        (451, {}, {}, Refused, "451"),
        (500, {}, {}, Cut, "500"),
        (503, {"retry-after": "3"}, {}, Pause, "503"),
        (503, {}, {}, Cut, "503"),
        (204, {}, {}, Refused, "no bytes"),
    ],
)
def test_other_answers(
    status: int, headers: dict[str, str], more: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind) as caught:
        judge(status, headers, ask(**more))
    assert type(caught.value) is kind
    assert words in str(caught.value)


def test_listing_must_agree() -> None:
    entry = {"path": "a", "size": 5, "sha256": "a" * 64}
    commit = "c" * 40
    judge_listing({}, entry, commit)
    judge_listing({"x-repo-commit": commit, "x-linked-size": "5", "x-linked-etag": f'W/"{"a" * 64}"'}, entry, commit)
    for headers in ({"x-repo-commit": "d" * 40}, {"x-linked-size": "6"}, {"x-linked-etag": '"%s"' % ("b" * 64)}):
        with pytest.raises(Refused):
            judge_listing(headers, entry, commit)


def test_retry_after() -> None:
    assert retry_after({"retry-after": "2.5"}) == 2.5
    assert retry_after({"retry-after": "99999999"}) == 3600
    assert retry_after({"retry-after": "Thu, 01 Jan 1970 00:00:30 GMT"}, now=10.0) == 20
    assert retry_after({"retry-after": "Thu, 01 Jan 1970 00:00:30 GMT"}, now=100.0) == 0
    assert retry_after({"ratelimit": '"resolvers";r=0;t=55'}) == 55
    assert retry_after({"retry-after": "soon"}) == 10
    assert retry_after({}) == 10


def test_life_of_signed_urls() -> None:
    now = 1_700_000_000.0
    assert life_of("https://cdn/x?Expires=1700000600&Signature=s", now) == 600
    assert life_of("https://cdn/x?Expires=1600000000", now) == 0
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now - 100))
    assert life_of(f"https://s3/x?X-Amz-Date={stamp}&X-Amz-Expires=3600", now) == pytest.approx(3500, abs=1)
    assert life_of("https://cdn/x", now) == 3000


def test_origins_and_shown_urls() -> None:
    assert origin_of("https://Hub.test/a") == ("https", "hub.test", 443)
    assert origin_of("http://[::1]:8901/a?b") == ("http", "::1", 8901)
    assert bare("https://u:p@cdn.test/x/y?Signature=secret#f") == "https://cdn.test/x/y"
    assert clean_etag('W/"AbC"') == "abc"


@pytest.mark.parametrize(
    ("no", "host", "used"),
    [
        ("", "hub.test", True),
        ("*", "hub.test", False),
        ("hub.test", "hub.test", False),
        (".test", "hub.test", False),
        ("other, 10.0.0.1", "10.0.0.1", False),
        ("b.test", "hub.test", True),
        ("hub.test:80", "hub.test", False),
        ("hub.test:81", "hub.test", True),
    ],
)
def test_proxies(no: str, host: str, used: bool) -> None:
    link = Link({}, {"http": "http://proxy:3128", "no": no})
    assert bool(link._proxy("http", host, 80)) is used
    assert link._proxy("https", host, 443) == ""
