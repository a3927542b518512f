"""A small hub on loopback for tests: one public, one gated, one private repository, several commits."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from k3ctl.lab.hub.faults import Faults
from k3ctl.lab.hub.links import LinkSigner
from k3ctl.lab.hub.log import RequestLog
from k3ctl.lab.hub.server import Hub, Running, serving
from k3ctl.lab.hub.store import HubStore, Repo, make_commit

REPO = "lab/tiny"
SHARD = bytes(range(256)) * 1200  # 307,200 B
DAY = "2026-11-01T00:00:00.000Z"
READER = "hf_reader"


def make_store(root: Path, shards: int = 3) -> HubStore:
    """Fill a hub folder: lab/tiny (two commits, a branch with a slash, a tag), lab/gated, lab/private, lab/old."""
    store = HubStore(root)
    files = [store.add(f"model-{i:05}-of-00000{shards}.safetensors", SHARD + bytes([i])) for i in range(shards)]
    files += [store.add("config.json", b'{"a": 1}'), store.add("extra/deep/notes.txt", b"n"), store.add("empty", b"")]
    first = make_commit("", "Initial", DAY, files)
    second = make_commit(first.id, "Second", DAY, [*files[:-3], store.add("config.json", b'{"a": 2}'), *files[-2:]])
    branches = {"main": second.id, "pr/one": first.id}
    store.save(Repo(REPO, "public", branches, {"v1": first.id}, (first, second)))
    for access in ("gated", "private"):
        store.save(Repo(f"lab/{access}", access, {"main": first.id}, {}, (first,)))
    store.save(Repo("lab/old", moved_to=REPO))
    (root / "tokens.json").write_text(json.dumps({READER: ["lab/gated", "lab/private"], "hf_other": []}))
    (root / "files" / "runtimes").mkdir(parents=True)
    (root / "files" / "runtimes" / "env.tar.zst").write_bytes(SHARD)
    return store


@contextmanager
def small_hub(
    root: Path, *, page: int = 1000, link_seconds: float = 60.0, script: Path | None = None
) -> Iterator[Running]:
    """Serve `make_store` on loopback; the request log is root/log."""
    store = make_store(root)
    hub = Hub(store, LinkSigner(link_seconds), Faults(script), RequestLog(root / "log"), page)
    with serving(hub, "127.0.0.1") as running:
        yield running


@dataclass(frozen=True)
class Got:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def ask(url: str, method: str = "GET", body: bytes | None = None, timeout: float = 10.0, **headers: str) -> Got:
    """One request without following redirects; header names may have _ for -."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    try:
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request(method, target, body, {k.replace("_", "-"): v for k, v in headers.items()})
        answer = connection.getresponse()
        return Got(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def logged(root: Path, count: int = 0) -> list[dict[str, Any]]:
    """The lines of the request log, once there are `count`: a line is written after the client has its answer."""
    until = time.monotonic() + 10
    while True:
        lines = [json.loads(line) for line in (root / "log").read_text().splitlines()]
        if len(lines) >= count or time.monotonic() > until:
            return lines
        time.sleep(0.01)
