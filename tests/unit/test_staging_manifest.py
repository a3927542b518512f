"""The manifest and the rules that a listing must keep to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from k3ctl.errors import PhaseFailed
from k3ctl.node.stagefolder import manifest_id as node_id
from k3ctl.staging.manifest import PIECE, Manifest, ManifestFile, from_json, manifest_of, to_json
from k3ctl.staging.rules import index_file, problems_of

COMMIT = "c" * 40


def lfs(path: str, size: int = 10) -> ManifestFile:
    return ManifestFile(path, size, sha256="a" * 64)


def small(path: str, size: int = 10) -> ManifestFile:
    return ManifestFile(path, size, git_sha1="b" * 40)


def made(*files: ManifestFile) -> Manifest:
    return manifest_of("org/name", COMMIT, "https://hub.test", files)


def wrong(*files: ManifestFile, index: str | None = None) -> str:
    return "\n".join(f"{p.what}: {p.found} / {p.expected}" for p in problems_of(made(*files), index))


def test_there_and_back() -> None:
    manifest = made(lfs("b.safetensors"), small("a.json", 0))
    text = json.dumps(to_json(manifest))
    assert from_json(json.loads(text)) == manifest
    assert [f.path for f in manifest.files] == ["a.json", "b.safetensors"]
    assert (manifest.total, manifest.piece) == (10, PIECE)


def test_nodes_compute_the_same_id() -> None:
    manifest = made(lfs("ü b.safetensors", 3), small("a.json"))
    assert node_id(to_json(manifest)) == manifest.id


def test_id_follows_content_and_not_the_way_there() -> None:
    one = made(lfs("a"))
    assert manifest_of("org/name", COMMIT, "https://mirror.test", [lfs("a")]).id == one.id
    assert manifest_of("org/name", COMMIT, "https://hub.test", [lfs("a", 11)]).id != one.id
    assert manifest_of("org/name", "d" * 40, "https://hub.test", [lfs("a")]).id != one.id
    assert manifest_of("org/name", COMMIT, "https://hub.test", [lfs("a")], piece=1 << 20).id != one.id


@pytest.mark.parametrize(
    ("key", "value"), [("schema", 2), ("files", None), ("commit", "e" * 40), ("piece", "x"), ("id", "0" * 64)]
)
def test_altered_manifest_is_not_read(key: str, value: Any) -> None:
    said = {**to_json(made(lfs("a"))), key: value}
    with pytest.raises(PhaseFailed):
        from_json(said)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../x",
        "a/../b",
        "a//b",
        "./a",
        "a/",
        "a\0b",
        "a\nb",
        "a\\b",
        ".k3stage/x",
        ".K3stage/x",
        "x" * 250,
    ],
)
def test_refused_paths(path: str) -> None:
    assert "refuses" in wrong(small(path))


def test_good_paths() -> None:
    assert wrong(small("a/b/c d.json"), small("ü.txt"), small(".gitattributes"), lfs("..a")) == ""


def test_clashes() -> None:
    assert "same name but for case" in wrong(small("Config.json"), small("config.json"))
    assert "a file and a folder" in wrong(small("a"), small("a/b"))


def test_every_file_has_one_digest() -> None:
    for file in (
        ManifestFile("a", 1),
        ManifestFile("a", 1, sha256="a" * 64, git_sha1="b" * 40),
        ManifestFile("a", 1, sha256="A" * 64),
        ManifestFile("a", -1, sha256="a" * 64),
        ManifestFile("a", 1, git_sha1="b" * 39),
    ):
        assert "no usable size and digest" in wrong(file)


def shards(numbers: list[int], count: int) -> list[ManifestFile]:
    return [lfs(f"model-{i:05}-of-{count:06}.safetensors") for i in numbers]


def test_shard_sets() -> None:
    assert wrong(*shards(list(range(1, 97)), 96)) == ""
    assert wrong(*shards([1], 1)) == ""
    assert wrong(*shards([0, 1], 2)) == ""
    assert "missing 2, 96" in wrong(*shards([i for i in range(1, 96) if i != 2], 96))
    assert "missing 1 " in wrong(*shards([2], 2)) + " "
    assert "out of range or twice 3" in wrong(*shards([1, 2, 3], 2))
    assert "twice 1" in wrong(*shards([1, 2], 2), lfs("model-1-of-2.safetensors"))
    assert "not a whole set" in wrong(lfs("a-00001-of-00002.bin"), lfs("b-00002-of-00002.bin"))


def test_empty_listing() -> None:
    assert "has no files" in wrong()


def test_index() -> None:
    files = shards([1, 2], 2)
    names = [f.path for f in files]
    whole = json.dumps({"metadata": {"total_size": 20}, "weight_map": {"x": names[0], "y": names[1]}})
    assert wrong(*files, index=whole) == ""
    more = json.dumps({"weight_map": {"x": names[0], "y": "model-00003.safetensors"}})
    assert "model-00003.safetensors" in wrong(*files, index=more)
    big = json.dumps({"metadata": {"total_size": 21}, "weight_map": {"x": names[0], "y": names[1]}})
    assert "smaller than the tensors" in wrong(*files, index=big)
    for broken in ("", "[]", "{}", '{"weight_map": 3}'):
        assert "cannot be read" in wrong(*files, index=broken)


def test_index_file_is_the_one_at_the_top() -> None:
    assert index_file([small("x/model.safetensors.index.json")]) is None
    assert index_file([small("z.safetensors.index.json"), small("model.safetensors.index.json")]) == small(
        "model.safetensors.index.json"
    )
    assert index_file([lfs("other.safetensors.index.json")]) == lfs("other.safetensors.index.json")
