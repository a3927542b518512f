"""A hub on loopback, a manifest of its files, and the real agent in a process of its own."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from k3ctl.lab.hub.faults import Faults, Rule
from k3ctl.lab.hub.links import LinkSigner
from k3ctl.lab.hub.log import RequestLog
from k3ctl.lab.hub.server import Hub, Running, serving
from k3ctl.lab.hub.store import HubStore, Repo, make_commit
from k3ctl.staging.manifest import Manifest, ManifestFile, manifest_of, to_json

PIECE = 64 * 1024
REPO = "lab/stage"
TOKEN = "hf_of_the_test"
SHARD = "model-00001-of-000001.safetensors"
QUICK = {
    "backoff_s": 0.05,
    "backoff_cap_s": 0.2,
    "silence_s": 1.0,
    "first_byte_s": 1.5,
    "sync_s": 0.05,
    "status_s": 0.05,
}


def noise(size: int, seed: int = 1) -> bytes:
    """Bytes that no two pieces share."""
    return random.Random(seed).randbytes(size)


@dataclass
class Bed:
    """One repository on a hub, one destination."""

    root: Path
    running: Running
    contents: Mapping[str, bytes]
    manifest: Manifest
    log: Path
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def dest(self) -> Path:
        return self.root / "weights" / REPO / self.manifest.commit

    @property
    def own(self) -> Path:
        return self.dest / ".k3stage" / self.manifest.id

    def job(self, **more: Any) -> dict[str, Any]:
        limits = {**QUICK, **more.pop("limits", {})}
        return {
            "schema": 1,
            "id": self.manifest.id,
            "dest": str(self.dest),
            "manifest": to_json(self.manifest),
            "sources": [{"kind": "hub", "endpoint": self.running.endpoint}],
            "connections": 2,
            "limits": limits,
            **more,
        }

    def start(self, **more: Any) -> subprocess.Popen[str]:
        """Start the agent on a job."""
        self.own.mkdir(parents=True, exist_ok=True)
        path = self.own / "job.json"
        path.write_text(json.dumps(self.job(**more)))
        argv = [sys.executable, "-m", "k3ctl.node", "fetch-run", str(path)]
        return subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def run(self, timeout: float = 30, **more: Any) -> int:
        """Run the agent to its end."""
        agent = self.start(**more)
        try:
            _, self.extra["stderr"] = agent.communicate(timeout=timeout)
        finally:
            if agent.poll() is None:
                agent.kill()
                agent.wait()
        return agent.returncode

    def faults(self, *rules: Rule) -> None:
        self.running.hub.faults.replace(rules)

    def status(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads((self.own / "status.json").read_text())
        return said

    def events(self) -> str:
        return (self.own / "events.jsonl").read_text()

    def served(self) -> list[dict[str, Any]]:
        """Requests in the order in which they ended."""
        time.sleep(0.05)
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def ranges(self, path: str, since: int = 0) -> list[tuple[int, int]]:
        """Ranges (first, last) asked of the content network for a file, from request number `since` on."""
        found = []
        for line in self.served()[since:]:
            if line["path"].endswith("/" + path) and line["path"].startswith("/cdn/"):
                first, last = line["range"].removeprefix("bytes=").split("-")
                found.append((int(first), int(last)))
        return found

    def whole(self) -> bool:
        """True when every file is in place with the right content and the record says so."""
        record = json.loads((self.own / "COMPLETE.json").read_text())
        assert record["id"] == self.manifest.id
        assert [f["path"] for f in record["files"]] == sorted(self.contents)
        assert not (self.own / "parts").exists()
        assert not (self.own / "job.json").exists()
        return all((self.dest / path).read_bytes() == content for path, content in self.contents.items())

    def nothing_named(self) -> bool:
        """True when no file has its final name."""
        return [p.name for p in self.dest.iterdir()] == [".k3stage"]


def listing(hub: Running, commit: str, piece: int = PIECE) -> Manifest:
    """The manifest of a commit, from the hub's own store."""
    repo = hub.hub.store.repo(REPO)
    assert repo is not None
    found = repo.resolve(commit)
    assert found is not None
    files = [
        ManifestFile(e.path, e.size, sha256=e.sha256) if e.lfs else ManifestFile(e.path, e.size, git_sha1=e.oid)
        for e in found.entries
    ]
    return manifest_of(REPO, commit, hub.endpoint, files, piece)


def publish(store: HubStore, contents: Mapping[str, bytes], access: str = "public") -> str:
    """Put files into the repository as its newest commit; the commit."""
    old = store.repo(REPO)
    entries = [store.add(path, content) for path, content in contents.items()]
    commit = make_commit("", "files", f"2026-11-{len(old.commits) + 1 if old else 1:02}T00:00:00.000Z", entries)
    commits = (*(old.commits if old else ()), commit)
    store.save(Repo(REPO, access, {"main": commit.id}, {}, commits))  # type: ignore[arg-type]
    return commit.id


@contextmanager
def bed(
    root: Path, contents: Mapping[str, bytes], *, link_seconds: float = 60.0, access: str = "public"
) -> Iterator[Bed]:
    """Serve `contents` as one commit."""
    store = HubStore(root / "hub")
    commit = publish(store, contents, access)
    (root / "hub" / "tokens.json").write_text(json.dumps({TOKEN: [REPO]}))
    hub = Hub(store, LinkSigner(link_seconds), Faults(), RequestLog(root / "requests"))
    with serving(hub, "127.0.0.1") as running:
        yield Bed(root, running, contents, listing(running, commit), root / "requests")


def next_revision(old: Bed, contents: Mapping[str, bytes]) -> Bed:
    """The same hub with one more commit."""
    commit = publish(old.running.hub.store, contents)
    return replace(old, contents=contents, manifest=listing(old.running, commit), extra={})


def wait_for(true: Callable[[], bool], timeout: float = 10.0) -> None:
    """Wait until something holds."""
    until = time.monotonic() + timeout
    while not true():
        if time.monotonic() > until:
            raise AssertionError("it did not come true in time")
        time.sleep(0.01)
