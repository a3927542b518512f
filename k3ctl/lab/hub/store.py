"""Repositories on disk: every content once by its sha256, every commit a list of names.

DIR/blobs/<sha256>            contents
DIR/repos/<org>/<name>.json   Repo: visibility, branches, tags, commits
DIR/tokens.json               {token: [names of repositories it may read]}; optional
DIR/files/...                 plain files served at /files/...
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from k3ctl.errors import ConfigError, Problem

REPO_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
COMMIT_ID = re.compile(r"[0-9a-f]{40}")
LFS_SUFFIXES = (".safetensors", ".bin", ".model", ".tiktoken")

Access = Literal["public", "gated", "private"]


@dataclass(frozen=True)
class Entry:
    """One file of a commit. `oid` is its git id (of the pointer for LFS files), `sha256` names its blob."""

    path: str
    size: int
    sha256: str
    oid: str
    lfs: bool
    pointer_size: int = 0


@dataclass(frozen=True)
class Commit:
    """One revision. `date` is ISO 8601 in UTC; `entries` are sorted by path."""

    id: str
    parent: str
    title: str
    date: str
    entries: tuple[Entry, ...]

    def entry(self, path: str) -> Entry | None:
        """The file of that path, or None."""
        return next((e for e in self.entries if e.path == path), None)


@dataclass(frozen=True)
class Repo:
    """One repository. `moved_to` names the repository that took its place (then there are no commits)."""

    name: str
    access: Access = "public"
    branches: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    commits: tuple[Commit, ...] = ()
    moved_to: str = ""

    def resolve(self, revision: str) -> Commit | None:
        """The commit of a branch, a tag or a full commit id; None when there is no such revision."""
        wanted = self.branches.get(revision) or self.tags.get(revision) or revision
        return next((c for c in self.commits if c.id == wanted), None)


def git_blob_id(content: bytes) -> str:
    """The id git gives a file: sha1 of 'blob <length>\\0' and the bytes."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def lfs_pointer(sha256: str, size: int) -> bytes:
    """The text that git keeps in place of a large file."""
    return b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n" % (sha256.encode(), size)


def make_commit(parent: str, title: str, date: str, entries: Iterable[Entry]) -> Commit:
    """A commit whose id follows from everything in it: the same files and words give the same id everywhere."""
    ordered = tuple(sorted(entries, key=lambda e: e.path))
    said = {"parent": parent, "title": title, "date": date, "entries": [asdict(e) for e in ordered]}
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return Commit(hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), parent, title, date, ordered)


class HubStore:
    """The folder of a hub. Readers see a repository's old or new state, never half of one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._seen: dict[str, tuple[int, int, Repo]] = {}

    def blob(self, sha256: str) -> Path:
        """Where a content lies."""
        return self.root / "blobs" / sha256

    def add(self, path: str, content: bytes, *, lfs: bool | None = None) -> Entry:
        """Keep a content and describe it as a file of a commit; weights count as LFS unless told otherwise."""
        sha256 = hashlib.sha256(content).hexdigest()
        blob = self.blob(sha256)
        if not (blob.is_file() and blob.stat().st_size == len(content)):
            _write(blob, content)
        large = path.endswith(LFS_SUFFIXES) if lfs is None else lfs
        if not large:
            return Entry(path, len(content), sha256, git_blob_id(content), lfs=False)
        pointer = lfs_pointer(sha256, len(content))
        return Entry(path, len(content), sha256, git_blob_id(pointer), lfs=True, pointer_size=len(pointer))

    def save(self, repo: Repo) -> None:
        """Write a repository's state in one step."""
        if not REPO_NAME.fullmatch(repo.name):
            raise ConfigError(Problem(what="a bad repository name", found=repo.name, expected="organisation/name"))
        text = json.dumps(asdict(repo), sort_keys=True, separators=(",", ":"))
        _write(self._file(repo.name), text.encode())

    def repo(self, name: str) -> Repo | None:
        """The repository of that name, or None. Read again only when its file has changed."""
        if not REPO_NAME.fullmatch(name):
            return None
        file = self._file(name)
        try:
            stat = file.stat()
            seen = self._seen.get(name)
            if seen is None or seen[:2] != (stat.st_mtime_ns, stat.st_ino):
                seen = (stat.st_mtime_ns, stat.st_ino, _repo(json.loads(file.read_bytes())))
                self._seen[name] = seen
        except FileNotFoundError:
            return None
        return seen[2]

    def grants(self) -> Mapping[str, tuple[str, ...]]:
        """Every token with the names of the gated and private repositories it may read."""
        try:
            said = json.loads((self.root / "tokens.json").read_bytes())
        except FileNotFoundError:
            return {}
        return {str(token): tuple(names) for token, names in said.items()}

    def plain_file(self, path: str) -> Path | None:
        """A file below files/; links made by the hub's owner are followed, names that climb out are not."""
        parts = path.split("/")
        if any(part in ("", ".", "..") or "\0" in part for part in parts):
            return None
        file = self.root.joinpath("files", *parts)
        return file if file.is_file() else None

    def _file(self, name: str) -> Path:
        return self.root / "repos" / f"{name}.json"


def _write(path: Path, content: bytes) -> None:
    """Write a file under another name and rename it, so that a reader or a crash never meets half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _repo(said: Mapping[str, Any]) -> Repo:
    commits = tuple(Commit(**{**c, "entries": tuple(Entry(**e) for e in c["entries"])}) for c in said["commits"])
    return Repo(**{**said, "commits": commits})
