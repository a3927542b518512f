"""The manifest: an immutable list of one revision's files, each with its size and digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from k3ctl.errors import PhaseFailed, Problem
from k3ctl.secret import Secret

SCHEMA = 1
PIECE = 16 * 1024 * 1024


@dataclass(frozen=True)
class ManifestFile:
    """One file. Exactly one of sha256 (LFS) and git_sha1 (small files: sha1 of 'blob <len>\\0' + bytes) is set."""

    path: str
    size: int
    sha256: str = ""
    git_sha1: str = ""


@dataclass(frozen=True)
class Manifest:
    """One repository at one commit. `id` is the sha256 of the canonical JSON of repo, commit, piece size and files.

    The endpoint is not in the id: where bytes come from does not change what they are, so a job goes on from a mirror.
    """

    repo: str
    commit: str
    endpoint: str
    files: tuple[ManifestFile, ...]
    id: str
    piece: int = PIECE

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(f.size for f in self.files)


class Hub(Protocol):
    """Reads a hub's catalogue from the controller."""

    def manifest(self, endpoint: str, repo: str, revision: str, token: Secret | None) -> Manifest:
        """List one pinned revision. Raises ConfigError or PhaseFailed with the hub's own reason."""

    def token(self, file: str) -> Secret:
        """The hub token of a file on the controller. Raises ConfigError: missing, empty, readable by others."""


def manifest_of(repo: str, commit: str, endpoint: str, files: Iterable[ManifestFile], piece: int = PIECE) -> Manifest:
    """Put a manifest together: files in path order, and the id that follows from them."""
    ordered = tuple(sorted(files, key=lambda f: f.path))
    return Manifest(repo, commit, endpoint, ordered, manifest_id(repo, commit, ordered, piece), piece)


def manifest_id(repo: str, commit: str, files: Iterable[ManifestFile], piece: int) -> str:
    """sha256 (64 hex digits) of the canonical JSON; k3ctl.node.stagefolder computes the same on the nodes."""
    body = {
        "schema": SCHEMA,
        "repo": repo,
        "commit": commit,
        "piece": piece,
        "files": [_file_json(f) for f in files],
    }
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def to_json(manifest: Manifest) -> dict[str, Any]:
    """The manifest as it travels and lies on disk: a JSON object, digests that are not there as null."""
    return {
        "schema": SCHEMA,
        "repo": manifest.repo,
        "endpoint": manifest.endpoint,
        "commit": manifest.commit,
        "piece": manifest.piece,
        "files": [_file_json(f) for f in manifest.files],
        "total": manifest.total,
        "id": manifest.id,
    }


def from_json(value: Any) -> Manifest:
    """Read what `to_json` made. Raises PhaseFailed when it is not a manifest, or not the one its id names."""
    try:
        if value["schema"] != SCHEMA:
            raise ValueError(f"schema {value['schema']}, this k3ctl reads {SCHEMA}")
        files = tuple(
            ManifestFile(str(f["path"]), int(f["size"]), f["sha256"] or "", f["git_sha1"] or "") for f in value["files"]
        )
        made = manifest_of(value["repo"], value["commit"], value["endpoint"], files, int(value["piece"]))
    except (KeyError, TypeError, ValueError) as error:
        raise PhaseFailed(Problem(what="a stored manifest cannot be read", found=repr(error))) from error
    if made.id != value.get("id"):
        raise PhaseFailed(
            Problem(
                what=f"the manifest of {made.repo} was altered",
                found=f"id {made.id[:12]} from its content",
                expected=f"id {str(value.get('id'))[:12]} as written in it",
            )
        )
    return made


def _file_json(file: ManifestFile) -> dict[str, Any]:
    return {"path": file.path, "size": file.size, "sha256": file.sha256 or None, "git_sha1": file.git_sha1 or None}
