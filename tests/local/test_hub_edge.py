"""The catalogue as huggingface_hub reads it from the lab's hub: pinned, listed, checked, and refused in plain words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from k3ctl.edge.hub import HuggingFaceHub
from k3ctl.errors import ConfigError, K3ctlError, PhaseFailed
from k3ctl.lab.hub.faults import Rule
from k3ctl.secret import Secret
from tests.local.stage_fixtures import REPO, TOKEN, bed, listing, noise

NAMES = [f"model-{i:05}-of-000003.safetensors" for i in (1, 2, 3)]
INDEX = json.dumps({"metadata": {"total_size": 300}, "weight_map": {f"t{i}": n for i, n in enumerate(NAMES)}}).encode()
FILES = {name: noise(100 + i, i) for i, name in enumerate(NAMES)} | {
    "model.safetensors.index.json": INDEX,
    "config.json": b"{}",
    "empty.txt": b"",
}
HUB = HuggingFaceHub(timeout_s=5)


def refusal(kind: type[K3ctlError], endpoint: str, repo: str, revision: str, token: Secret | None = None) -> str:
    with pytest.raises(kind) as caught:
        HUB.manifest(endpoint, repo, revision, token)
    assert type(caught.value) is kind
    return "\n".join(f"{p.what} | {p.found} | {p.expected} | {p.fix} | {p.evidence}" for p in caught.value.problems)


def test_manifest(tmp_path: Path) -> None:
    with bed(tmp_path, FILES) as hub:
        found = HUB.manifest(hub.running.endpoint, REPO, hub.manifest.commit, None)
        assert found.files == hub.manifest.files
        assert found == listing(hub.running, hub.manifest.commit, piece=found.piece)
        assert {f.path: f.size for f in found.files} == {path: len(content) for path, content in FILES.items()}
        assert all(f.sha256 for f in found.files if f.path.endswith(".safetensors"))
        assert all(f.git_sha1 for f in found.files if not f.path.endswith(".safetensors"))


def test_paging(tmp_path: Path) -> None:
    files = {f"dir{i % 7}/file{i}.txt": b"x" * i for i in range(1200)}
    with bed(tmp_path, files) as hub:
        found = HUB.manifest(hub.running.endpoint, REPO, hub.manifest.commit, None)
        assert len(found.files) == 1200
        assert found.files == hub.manifest.files


def test_branch_is_resolved_and_refused_with_its_commit(tmp_path: Path) -> None:
    with bed(tmp_path, FILES) as hub:
        assert HUB.pin(hub.running.endpoint, REPO, "main", None) == hub.manifest.commit
        said = refusal(ConfigError, hub.running.endpoint, REPO, "main")
        assert f"set weights.revision to {hub.manifest.commit}" in said


def test_refusals_are_told_apart(tmp_path: Path) -> None:
    with bed(tmp_path, FILES) as hub:
        at, commit = hub.running.endpoint, hub.manifest.commit
        assert "is not found" in refusal(ConfigError, at, "lab/none", commit)
        assert "or needs a token" in refusal(ConfigError, at, "lab/none", commit)
        assert "may not see this repository" in refusal(ConfigError, at, "lab/none", commit, Secret(TOKEN))
        assert "no revision" in refusal(ConfigError, at, REPO, "d" * 40)
        assert "the token is refused" in refusal(ConfigError, at, REPO, commit, Secret("hf_bad"))
        assert "not the name of a repository" in refusal(ConfigError, at, "a/b/c/d", commit)
        assert "does not answer" in refusal(PhaseFailed, "http://127.0.0.1:9", REPO, commit)


def test_gated(tmp_path: Path) -> None:
    with bed(tmp_path, FILES, access="gated") as hub:
        at, commit = hub.running.endpoint, hub.manifest.commit
        said = refusal(ConfigError, at, REPO, commit)  # the listing is open, the index is not
        assert "gated" in said
        assert f"accept the terms at {at}/{REPO}" in said
        assert HUB.manifest(at, REPO, commit, Secret(TOKEN)).files == hub.manifest.files
        assert TOKEN not in refusal(ConfigError, at, "lab/none", commit, Secret(TOKEN))


def test_rate_limit_and_portal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bed(tmp_path, FILES) as hub:
        at, commit = hub.running.endpoint, hub.manifest.commit
        hub.faults(Rule("/api/*", "status", status=429, headers={"Retry-After": "2"}, count=0))
        assert "429" in refusal(PhaseFailed, at, REPO, commit)
        hub.faults(Rule("/api/*", "status", status=403, body="<html>blocked by policy</html>", count=0))
        said = refusal(PhaseFailed, at, REPO, commit)
        assert "proxy" in said
        assert "blocked by policy" in said


def test_index_that_names_more_files(tmp_path: Path) -> None:
    with bed(tmp_path, {**FILES, "model.safetensors.index.json": INDEX.replace(b"00003-of", b"00004-of")}) as hub:
        said = refusal(PhaseFailed, hub.running.endpoint, REPO, hub.manifest.commit)
        assert "model-00004-of-000003.safetensors" in said


def test_shard_that_is_missing(tmp_path: Path) -> None:
    with bed(tmp_path, {k: v for k, v in FILES.items() if k != NAMES[1]}) as hub:
        said = refusal(PhaseFailed, hub.running.endpoint, REPO, hub.manifest.commit)
        assert "missing 2" in said


def test_altered_index_is_found(tmp_path: Path) -> None:
    with bed(tmp_path, FILES) as hub:
        hub.faults(Rule("*/resolve/*index.json", "flip", at=5, count=0))
        said = refusal(PhaseFailed, hub.running.endpoint, REPO, hub.manifest.commit)
        assert "is not what the listing says" in said


def test_token_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("hf_x\n")
    path.chmod(0o600)
    assert HUB.token(str(path)) == Secret("hf_x")
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="read by other users") as caught:
        HUB.token(str(path))
    assert "chmod 600" in caught.value.problems[0].fix
    path.chmod(0o600)
    for bad in ("", "two words", "a\nb"):
        path.write_text(bad)
        with pytest.raises(ConfigError, match="does not hold one token"):
            HUB.token(str(path))
    with pytest.raises(ConfigError, match="cannot be read"):
        HUB.token(str(tmp_path / "none"))
