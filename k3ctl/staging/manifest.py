"""The manifest: an immutable list of one revision's files, each with its size and digest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from k3ctl.secret import Secret


@dataclass(frozen=True)
class ManifestFile:
    """One file. Exactly one of sha256 (LFS) and git_sha1 (small files: sha1 of 'blob <len>\\0' + bytes) is set."""

    path: str
    size: int
    sha256: str = ""
    git_sha1: str = ""


@dataclass(frozen=True)
class Manifest:
    """One repository at one commit. `id` is the sha256 of the canonical JSON of everything else."""

    repo: str
    commit: str
    endpoint: str
    files: tuple[ManifestFile, ...]
    id: str

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(f.size for f in self.files)


class Hub(Protocol):
    """Reads a hub's catalogue from the controller."""

    def manifest(self, endpoint: str, repo: str, revision: str, token: Secret | None) -> Manifest:
        """List one pinned revision. Raises ConfigError or PhaseFailed with the hub's own reason."""
