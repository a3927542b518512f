"""The fault script: which requests go wrong, how often, and in what way.

A script is a JSON list of rules. Of the rules that match a request the first with something left is used. A rule:

    path     pattern (fnmatch) over the request's path without query: "/cdn/lab/*/model-00003*"
    kind     one of KINDS
    method, client, server   match only these; left out: any. `server` is hub or cdn
    range    pattern over the Range header: "bytes=0-*"
    skip     let so many matching requests pass first (default 0)
    count    then do it so many times (default 1; 0 = always)
    at       cut, reset, stall: after so many bytes of this body; flip: at this byte of the file; wrong-range: shift
    seconds  delay: before the answer; stall: how long
    rate     slow: bytes per second
    status, headers, body    status: the whole answer (429 with Retry-After, 503, ...); html: its body
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from k3ctl.errors import ConfigError, Problem

KINDS = (
    "cut",  # close the connection in the middle of the body
    "reset",  # the same with a TCP reset
    "stall",  # hold the connection open without a byte
    "slow",  # trickle
    "delay",  # answer late
    "status",  # answer with this status
    "expired",  # 403 as an old signed link gives
    "html",  # 200 with a page, as a captive portal does
    "wrong-range",  # a Content-Range that does not belong to the bytes
    "ignore-range",  # 200 and the whole file
    "flip",  # one bit of one byte is wrong
)


@dataclass(frozen=True)
class Rule:
    """One rule of a script; the module's text says what the fields mean."""

    path: str
    kind: str
    method: str = ""
    client: str = ""
    server: str = ""
    range: str = ""
    skip: int = 0
    count: int = 1
    at: int = 0
    seconds: float = 0.0
    rate: float = 0.0
    status: int = 503
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""

    def matches(self, *, path: str, method: str, client: str, server: str, range_header: str) -> bool:
        """True when the rule is about this request."""
        return (
            fnmatchcase(path, self.path)
            and self.method in ("", method)
            and self.client in ("", client)
            and self.server in ("", server)
            and (not self.range or fnmatchcase(range_header, self.range))
        )


def parse(text: str, origin: str) -> tuple[Rule, ...]:
    """Rules of a script. Raises ConfigError with every bad rule."""
    try:
        said = json.loads(text or "[]")
    except ValueError as error:
        raise ConfigError(Problem(what="the fault script is not JSON", found=str(error), file=origin)) from None
    if not isinstance(said, list):
        raise ConfigError(Problem(what="the fault script is not a list of rules", file=origin))
    problems = [Problem(what=w, file=origin, key=f"[{i}]") for i, r in enumerate(said) for w in _wrong(r)]
    if problems:
        raise ConfigError(*problems)
    return tuple(Rule(**rule) for rule in said)


def _wrong(rule: Any) -> list[str]:
    if not isinstance(rule, dict):
        return ["a rule is not an object"]
    known = {f.name for f in fields(Rule)}
    wrong = [f"unknown key {key}" for key in sorted(set(rule) - known)]
    wrong += [f"{key} is missing" for key in ("path", "kind") if key not in rule]
    if rule.get("kind") not in (None, *KINDS):
        wrong.append(f"unknown kind {rule['kind']}, expected one of {', '.join(KINDS)}")
    numbers = ("skip", "count", "at", "seconds", "rate", "status")
    wrong += [f"{k} is not a number >= 0" for k in numbers if not _is_count(rule.get(k, 0))]
    if rule.get("kind") == "slow" and not rule.get("rate"):
        wrong.append("slow needs rate")
    return wrong


def _is_count(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


class Faults:
    """The script in force and how often each rule was used. Thread-safe; a changed script file is read at once."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._stamp: tuple[int, int] | None = None
        self._lock = threading.Lock()
        self._rules: tuple[Rule, ...] = ()
        self._seen: list[int] = []
        self.problem = ""

    def replace(self, rules: tuple[Rule, ...]) -> None:
        """Put another script in force; all counts begin anew."""
        with self._lock:
            self._put(rules)

    def pick(self, *, path: str, method: str, client: str, server: str, range_header: str) -> Rule | None:
        """The rule that spoils this request, or None."""
        with self._lock:
            self._reread()
            for index, rule in enumerate(self._rules):
                if rule.matches(path=path, method=method, client=client, server=server, range_header=range_header):
                    self._seen[index] += 1
                    turn = self._seen[index] - rule.skip
                    if turn > 0 and (rule.count == 0 or turn <= rule.count):
                        return rule
        return None

    def report(self) -> dict[str, Any]:
        """The rules with how many requests matched each, and what is wrong with the script file, if anything."""
        with self._lock:
            self._reread()
            rules = [{**asdict(r), "matched": n} for r, n in zip(self._rules, self._seen, strict=True)]
        return {"rules": rules, "problem": self.problem}

    def _put(self, rules: tuple[Rule, ...]) -> None:
        self._rules, self._seen = rules, [0] * len(rules)

    def _reread(self) -> None:
        """A broken script keeps the old rules in force and is told by `report`."""
        if self._file is None:
            return
        try:
            stat = self._file.stat()
            stamp = (stat.st_mtime_ns, stat.st_ino)
            if stamp == self._stamp:
                return
            self._stamp, self.problem = stamp, ""
            self._put(parse(self._file.read_text(), str(self._file)))
        except FileNotFoundError:
            if self._stamp is not None:
                self._stamp = None
                self._put(())
        except ConfigError as error:
            self.problem = str(error)
