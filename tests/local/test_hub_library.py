"""huggingface_hub, unchanged, downloads from the hub and verifies."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_download, hf_hub_url, snapshot_download
from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from tests.local.hub_fixtures import READER, REPO, SHARD, logged, small_hub


def test_snapshot_download_and_verify(tmp_path: Path) -> None:
    with small_hub(tmp_path / "hub", page=2) as hub:
        api = HfApi(endpoint=hub.endpoint, token=READER)
        commit = api.repo_info(REPO, revision="main").sha
        assert commit
        folder = tmp_path / "there"
        got = snapshot_download(REPO, revision="main", local_dir=folder, endpoint=hub.endpoint, token=READER)
        assert Path(got) == folder
        for i in range(3):
            assert (folder / f"model-{i:05}-of-000003.safetensors").read_bytes() == SHARD + bytes([i])
        assert (folder / "config.json").read_text() == '{"a": 2}'
        result = api.verify_repo_checksums(REPO, local_dir=folder, revision=commit)
        assert result.checked_count == 6
        assert not result.mismatches
        assert not result.missing_paths
        lines = logged(tmp_path / "hub")
    assert {line["status"] for line in lines} <= {200, 206, 302}
    assert any(line["server"] == "cdn" for line in lines)
    assert not [line for line in lines if line["leak"]]


def test_older_revision_and_cache_layout(tmp_path: Path) -> None:
    with small_hub(tmp_path / "hub") as hub:
        path = hf_hub_download(
            REPO, "config.json", revision="v1", cache_dir=tmp_path / "cache", endpoint=hub.endpoint, token=False
        )
        first = HfApi(endpoint=hub.endpoint, token=False).repo_info(REPO, revision="v1").sha
    assert Path(path).read_text() == '{"a": 1}'
    assert f"/snapshots/{first}/" in path


def test_catalogue_calls(tmp_path: Path) -> None:
    with small_hub(tmp_path / "hub", page=2) as hub:
        api = HfApi(endpoint=hub.endpoint, token=False)
        files = {f.path: f for f in api.list_repo_tree(REPO, recursive=True)}
        assert len(files) == 8
        name = "model-00001-of-000003.safetensors"
        assert files[name].lfs.size == len(SHARD) + 1  # type: ignore[union-attr]
        assert [f.path for f in api.get_paths_info(REPO, ["extra", "config.json"])] == ["extra", "config.json"]
        assert {t.name for t in api.list_repo_refs(REPO).tags} == {"v1"}
        url = hf_hub_url(REPO, name, revision="main", endpoint=hub.endpoint)
        meta = get_hf_file_metadata(url, token=False)
        assert (meta.etag, meta.size) == (files[name].lfs.sha256, len(SHARD) + 1)  # type: ignore[union-attr]
        assert api.repo_info("lab/old").id == REPO


def test_errors_have_their_types(tmp_path: Path) -> None:
    with small_hub(tmp_path / "hub") as hub:
        api = HfApi(endpoint=hub.endpoint, token=False)
        with pytest.raises(RepositoryNotFoundError):
            api.repo_info("lab/none")
        with pytest.raises(RevisionNotFoundError):
            api.repo_info(REPO, revision="nope")
        kept = {"cache_dir": tmp_path / "cache", "endpoint": hub.endpoint}
        with pytest.raises(EntryNotFoundError):
            hf_hub_download(REPO, "nope.json", token=False, **kept)
        with pytest.raises(GatedRepoError):
            hf_hub_download("lab/gated", "config.json", token="hf_other", **kept)
        assert hf_hub_download("lab/gated", "config.json", token=READER, **kept)
