"""Reads a hub's catalogue with huggingface_hub: pins a revision, lists its files with sizes and digests."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi, RepoFile, hf_hub_download
from huggingface_hub.utils.tqdm import disable_progress_bars

from k3ctl.edge.hub_errors import explained
from k3ctl.errors import ConfigError, PhaseFailed, Problem
from k3ctl.secret import Secret
from k3ctl.staging.manifest import Manifest, ManifestFile, manifest_of
from k3ctl.staging.rules import index_file, problems_of

COMMIT = re.compile(r"^[0-9a-f]{40}$")


@dataclass(frozen=True)
class HuggingFaceHub:
    """The Hub protocol over huggingface_hub, which brings retries (5, on 429 and 5xx), paging, proxies and CAs."""

    timeout_s: float = 20.0

    def manifest(self, endpoint: str, repo: str, revision: str, token: Secret | None) -> Manifest:
        """List one pinned revision and check the list. Raises ConfigError or PhaseFailed with the hub's own reason."""
        commit = self.pin(endpoint, repo, revision, token)
        if not COMMIT.match(revision):
            raise ConfigError(
                Problem(
                    what=f"{repo}: a revision must be pinned, {revision!r} can move while it is fetched",
                    found=f"{revision} is commit {commit} now",
                    expected="a commit of 40 hex digits",
                    fix=f"set weights.revision to {commit}",
                )
            )
        if commit != revision:
            raise PhaseFailed(
                Problem(what=f"{endpoint} answered for another commit of {repo}", found=commit, expected=revision)
            )
        with explained(endpoint, repo, revision, has_token=token is not None):
            manifest = manifest_of(repo, commit, endpoint, self._files(endpoint, repo, commit, token))
            index = index_file(manifest.files)
        text = self._index_text(endpoint, manifest, index, token) if index else None
        problems = problems_of(manifest, text)
        if problems:
            raise PhaseFailed(*problems)
        return manifest

    def pin(self, endpoint: str, repo: str, revision: str, token: Secret | None) -> str:
        """The commit (40 hex digits) that a branch, tag or commit names now, asked from the hub each time."""
        with explained(endpoint, repo, revision, has_token=token is not None):
            api = HfApi(endpoint=endpoint, token=_plain(token))
            commit = api.repo_info(repo, revision=revision, timeout=self.timeout_s).sha
        if not commit or not COMMIT.match(commit):
            raise PhaseFailed(
                Problem(what=f"{endpoint} names no commit for {repo}@{revision}", found=repr(commit), expected="40 hex")
            )
        return commit

    def token(self, file: str) -> Secret:
        """The hub token of a file on the controller. Raises ConfigError: missing, empty, readable by others."""
        path = Path(file).expanduser()
        try:
            mode = stat.S_IMODE(os.stat(path).st_mode)
            text = path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                Problem(what="the hub token cannot be read", file=str(path), key="weights.token_file", found=str(error))
            ) from error
        if mode & 0o077:
            raise ConfigError(
                Problem(
                    what="the hub token can be read by other users",
                    file=str(path),
                    key="weights.token_file",
                    found=f"mode {mode:04o}",
                    expected="mode 0600",
                    fix=f"chmod 600 {path}",
                )
            )
        if not text or any(c.isspace() for c in text):
            raise ConfigError(
                Problem(
                    what="the hub token file does not hold one token",
                    file=str(path),
                    key="weights.token_file",
                    found="no text" if not text else "text with spaces or several lines",
                )
            )
        return Secret(text)

    def _files(self, endpoint: str, repo: str, commit: str, token: Secret | None) -> Iterator[ManifestFile]:
        """Every file of the commit; paging is the library's."""
        api = HfApi(endpoint=endpoint, token=_plain(token))
        for entry in api.list_repo_tree(repo, recursive=True, revision=commit):
            if not isinstance(entry, RepoFile):
                continue
            if entry.lfs is None:
                yield ManifestFile(entry.path, entry.size, git_sha1=entry.blob_id)
            else:
                yield ManifestFile(entry.path, entry.lfs.size, sha256=entry.lfs.sha256)

    def _index_text(self, endpoint: str, manifest: Manifest, index: ManifestFile, token: Secret | None) -> str:
        """The safetensors index, fetched beside the listing and proven against it."""
        disable_progress_bars()  # the progress view is ours
        with tempfile.TemporaryDirectory(prefix="k3ctl-index-") as folder:
            with explained(endpoint, manifest.repo, manifest.commit, has_token=token is not None):
                fetched = hf_hub_download(
                    manifest.repo,
                    index.path,
                    revision=manifest.commit,
                    endpoint=endpoint,
                    token=_plain(token),
                    local_dir=folder,
                    etag_timeout=self.timeout_s,
                )
            content = Path(fetched).read_bytes()
        found = _digest(content, index)
        if found != (index.sha256 or index.git_sha1):
            raise PhaseFailed(
                Problem(
                    what=f"{index.path} of {manifest.repo} is not what the listing says",
                    found=f"{found} ({len(content)} bytes)",
                    expected=f"{index.sha256 or index.git_sha1} ({index.size} bytes)",
                    fix=f"a proxy or mirror between here and {endpoint} alters content",
                )
            )
        return content.decode("utf-8", "replace")


def _digest(content: bytes, file: ManifestFile) -> str:
    if file.sha256:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _plain(token: Secret | None) -> str | bool:
    """The token for the library; False keeps it from sending one it finds on this machine."""
    return token.reveal() if token else False
