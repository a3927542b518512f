"""A source of bytes under a manifest: a hub (address by resolve, signed URLs), or one plain URL."""

from __future__ import annotations

import re
import threading
import time
import urllib.parse
from typing import Any, Dict, List, Optional

from k3ctl.node.httpjudge import REDIRECTS, Cut, NoRange, Odd, Pause, Refused, Stale, judge, judge_listing
from k3ctl.node.link import Link, Reply, bare, origin_of

ASSUMED_LIFE_S = 50 * 60.0
FRESH_REFUSALS = 2
ODD_ANSWERS = 8


class Located:
    """Where a file's bytes are: `signed` when the source handed the URL out, `until` on the monotonic clock."""

    def __init__(self, url: str, until: float, *, signed: bool) -> None:
        self.url = url
        self.until = until
        self.signed = signed


class Source:
    """One source. Thread-safe. `down` is why it cannot serve any more, `no_range` that it cannot resume."""

    def __init__(self, spec: Dict[str, Any], repo: str, commit: str) -> None:
        self.kind = spec["kind"]
        self.base = spec["endpoint"].rstrip("/") if self.kind == "hub" else spec["url"]
        self.repo = repo
        self.commit = commit if self.kind == "hub" else ""
        self.name = urllib.parse.urlsplit(self.base).netloc.rsplit("@", 1)[-1]
        self.down = ""
        self.no_range = False
        self.paused_until = 0.0
        self.paused_why = ""
        self._token = str(spec.get("token") or "")
        self._known: Dict[str, Located] = {}
        self._locks: Dict[str, threading.Lock] = {}
        self._refusals: Dict[str, int] = {}
        self._odd = 0
        self._guard = threading.Lock()

    def address(self, path: str) -> str:
        """The URL under which the source answers for a file of the manifest."""
        if self.kind == "url":
            return str(self.base)
        return "%s/%s/resolve/%s/%s" % (self.base, self.repo, self.commit, urllib.parse.quote(path))

    def open(self, link: Link, entry: Dict[str, Any], first: int, last: int) -> Reply:
        """Ask for bytes first..last of a file. Raises Cut, Pause, Stale, NoRange, or Refused after setting `down`."""
        try:
            reply = self._open(link, entry, first, last)
        except NoRange:
            self.no_range = True
            link.close()
            raise
        except Refused as error:
            self.down = "%s: %s" % (self.name, error)
            link.close()
            raise
        except Pause as pause:
            self.paused_until = max(self.paused_until, time.monotonic() + pause.seconds)
            self.paused_why = "%s: %s" % (self.name, pause)
            link.close()
            raise
        except Odd as odd:
            link.close()
            self._count_odd(odd)
            raise
        except Cut:
            link.close()
            raise
        with self._guard:
            self._refusals.pop(entry["path"], None)
            self._odd = 0
        return reply

    def _open(self, link: Link, entry: Dict[str, Any], first: int, last: int) -> Reply:
        path = entry["path"]
        with self._guard:
            lock = self._locks.setdefault(path, threading.Lock())
        located = self._fresh(path)
        if located is None:
            with lock:  # one asks, the others wait for its answer: the hub counts these requests
                located = self._fresh(path)
                if located is None:
                    return self._resolve(link, entry, first, last)
        reply = self._ask(link, located.url, first, last)
        self._judge(reply, entry, first, last, located)
        return reply

    def _resolve(self, link: Link, entry: Dict[str, Any], first: int, last: int) -> Reply:
        """Follow the source's redirects to the bytes and remember where they are."""
        path = entry["path"]
        located = Located(self.address(path), float("inf"), signed=False)
        for _hop in range(6):
            reply = self._ask(link, located.url, first, last)
            if not located.signed:
                judge_listing(reply.headers, entry, self.commit)
            if reply.status not in REDIRECTS:
                if located.signed:
                    self._known[path] = located  # before it is judged: refusals of fresh URLs are counted
                self._judge(reply, entry, first, last, located)
                self._known[path] = located
                return reply
            target = urllib.parse.urljoin(located.url, reply.headers.get("location", ""))
            _drain(reply, link)
            located = self._redirected(located, target)
        raise Refused("more than 5 redirects for %s" % path)

    def _redirected(self, before: Located, target: str) -> Located:
        """Where a redirect leads; from the hub to another origin means a signed URL."""
        if origin_of(target)[0] not in ("http", "https"):
            raise Refused("redirect to %s" % bare(target))
        if origin_of(before.url)[0] == "https" and origin_of(target)[0] == "http":
            raise Refused("redirect from https to plain http (%s)" % bare(target))
        if before.signed or origin_of(target) == origin_of(self.base):
            return Located(target, before.until, signed=before.signed)
        return Located(target, time.monotonic() + life_of(target, time.time()) * 0.8, signed=True)

    def _ask(self, link: Link, url: str, first: int, last: int) -> Reply:
        headers = {"Accept-Encoding": "identity", "Accept": "*/*", "Range": "bytes=%d-%d" % (first, last)}
        if self._token and origin_of(url) == origin_of(self.base):  # nobody but the hub itself ever sees the token
            headers["Authorization"] = "Bearer " + self._token
        return link.get(url, headers)

    def _judge(self, reply: Reply, entry: Dict[str, Any], first: int, last: int, located: Located) -> None:
        ask = {
            "path": entry["path"],
            "first": first,
            "last": last,
            "size": entry["size"],
            "token": bool(self._token),
            "signed": located.signed,
        }
        try:
            judge(reply.status, reply.headers, ask)
        except Stale as stale:
            self._forget(entry["path"], located, stale)
            raise
        except Refused as refused:
            text = reply.snippet()
            raise Refused("%s%s" % (refused, ' "%s"' % text if text else "")) from refused

    def _forget(self, path: str, located: Located, stale: Stale) -> None:
        """Drop a signed URL that was refused; too many fresh ones in a row put the source down."""
        with self._guard:
            if self._known.get(path) is not located:
                return  # another worker has renewed it already
            del self._known[path]
            self._refusals[path] = self._refusals.get(path, 0) + 1
            count = self._refusals[path]
        if count > FRESH_REFUSALS:
            host = origin_of(located.url)[1]
            raise Refused(
                "%s, %d fresh URLs of %s in a row: a proxy, or URLs bound to another address" % (stale, count, host)
            )

    def _count_odd(self, odd: Odd) -> None:
        """An answer that does not fit is asked for again; a source that goes on like that is put down."""
        with self._guard:
            self._odd += 1
            count = self._odd
        if count >= ODD_ANSWERS:
            self.down = "%s: %d wrong answers in a row, last: %s" % (self.name, count, odd)
            raise Refused(str(odd)) from odd

    def _fresh(self, path: str) -> Optional[Located]:
        with self._guard:
            located = self._known.get(path)
            if located is not None and located.until <= time.monotonic():
                del self._known[path]
                return None
            return located


def _drain(reply: Reply, link: Link) -> None:
    """Read the short body of a redirect, so that the connection stays; a long one costs the connection."""
    view = memoryview(bytearray(16384))
    try:
        for _ in range(4):
            if reply.read_into(view) == 0:
                break
    except Cut:
        link.close()
        return
    if not reply.end():
        link.close()


def life_of(url: str, now: float) -> float:
    """Seconds that a signed URL lives on, from its query (CloudFront, S3 and Google forms); 50 minutes when unknown."""
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(url).query)

    def first(*names: str) -> str:
        values: List[str] = [v for n in names for v in query.get(n, [])]
        return values[0] if values else ""

    expires = first("Expires", "expires")
    if re.match(r"^\d{9,11}$", expires):
        return max(float(expires) - now, 0.0)
    date, seconds = first("X-Amz-Date", "X-Goog-Date"), first("X-Amz-Expires", "X-Goog-Expires")
    if seconds.isdigit() and re.match(r"^\d{8}T\d{6}Z$", date):
        since = time.mktime(time.strptime(date, "%Y%m%dT%H%M%SZ")) - time.timezone
        return max(since + float(seconds) - now, 0.0)
    return ASSUMED_LIFE_S
