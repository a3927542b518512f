"""The hub answers as the real one does, down to headers and error kinds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from k3ctl.lab.hub.server import Running
from k3ctl.lab.hub.store import git_blob_id
from tests.local.hub_fixtures import READER, REPO, SHARD, ask, logged, small_hub

FIRST_SHARD = "model-00000-of-000003.safetensors"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Running]:
    with small_hub(tmp_path, page=2) as running:
        yield running


def test_revision_names_and_commits(hub: Running) -> None:
    base = f"{hub.endpoint}/api/models/{REPO}"
    main = ask(f"{base}/revision/main").json()
    first = ask(f"{base}/revision/v1").json()
    assert main["sha"] != first["sha"]
    assert ask(base).json()["sha"] == main["sha"]
    assert ask(f"{base}/revision/pr%2Fone").json()["sha"] == first["sha"]
    assert ask(f"{base}/revision/{first['sha']}").json()["siblings"] == main["siblings"]
    assert {r["name"] for r in ask(f"{base}/refs").json()["branches"]} == {"main", "pr/one"}


def test_tree_pages_and_digests(hub: Running) -> None:
    url = f"{hub.endpoint}/api/models/{REPO}/tree/main?recursive=True&expand=false"
    entries, pages = [], 0
    while url:
        got = ask(url)
        assert len(got.json()) <= 2
        entries += got.json()
        pages += 1
        url = got.headers.get("link", "").partition(">")[0].lstrip("<")
    assert pages == 4
    paths = [e["path"] for e in entries]
    assert paths == sorted(set(paths))
    assert {e["path"] for e in entries if e["type"] == "directory"} == {"extra", "extra/deep"}
    by_path = {e["path"]: e for e in entries}
    assert by_path[FIRST_SHARD]["lfs"]["oid"] == hashlib.sha256(SHARD + b"\0").hexdigest()
    assert by_path["config.json"]["oid"] == git_blob_id(b'{"a": 2}')
    assert "lfs" not in by_path["config.json"]


@pytest.mark.parametrize(("query", "count"), [("", 2), ("?limit=1", 1), ("?limit=999", 2)])
def test_tree_of_top_folder_keeps_to_page_size(hub: Running, query: str, count: int) -> None:
    assert len(ask(f"{hub.endpoint}/api/models/{REPO}/tree/main{query}").json()) == count


def test_paths_info(hub: Running) -> None:
    url = f"{hub.endpoint}/api/models/{REPO}/paths-info/main"
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    got = ask(url, "POST", b"paths=config.json&paths=extra&paths=absent&expand=False", **form).json()
    assert [(e["path"], e["type"]) for e in got] == [("config.json", "file"), ("extra", "directory")]
    assert ask(url, "POST", b'{"paths": ["empty"]}', Content_Type="application/json").json()[0]["size"] == 0


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_large_file_redirects_to_a_signed_link_on_another_origin(hub: Running, method: str) -> None:
    got = ask(f"{hub.endpoint}/{REPO}/resolve/v1/{FIRST_SHARD}", method)
    digest = hashlib.sha256(SHARD + b"\0").hexdigest()
    assert got.status == 302
    assert got.headers["location"].startswith(f"http://127.0.0.1:{hub.cdn_port}/cdn/")
    assert got.headers["x-linked-etag"] == f'"{digest}"'
    assert got.headers["x-linked-size"] == str(len(SHARD) + 1)
    assert got.headers["x-repo-commit"] == ask(f"{hub.endpoint}/api/models/{REPO}/revision/v1").json()["sha"]
    body = ask(got.headers["location"])
    assert hashlib.sha256(body.body).hexdigest() == digest
    assert body.headers["etag"] == f'"{digest}"'


def test_small_file_is_answered_at_once(hub: Running) -> None:
    got = ask(f"{hub.endpoint}/{REPO}/resolve/main/config.json")
    assert (got.status, got.body) == (200, b'{"a": 2}')
    assert got.headers["etag"] == f'"{git_blob_id(got.body)}"'
    assert ask(f"{hub.endpoint}/{REPO}/resolve/main/empty").body == b""


@pytest.mark.parametrize(
    ("asked", "status", "content_range", "body"),
    [
        ("bytes=0-0", 206, "bytes 0-0/307201", SHARD[:1]),
        ("bytes=255-256", 206, "bytes 255-256/307201", b"\xff\x00"),
        ("bytes=307200-", 206, "bytes 307200-307200/307201", b"\0"),
        ("bytes=307199-999999", 206, "bytes 307199-307200/307201", b"\xff\0"),
        ("bytes=-2", 206, "bytes 307199-307200/307201", b"\xff\0"),
        ("bytes=307201-", 416, "bytes */307201", b""),
        ("bytes=-0", 416, "bytes */307201", b""),
        ("bytes=5-2", 200, None, SHARD + b"\0"),
        ("bytes=0-1,4-5", 200, None, SHARD + b"\0"),
        ("lines=0-1", 200, None, SHARD + b"\0"),
    ],
)
def test_ranges(hub: Running, asked: str, status: int, content_range: str | None, body: bytes) -> None:
    link = ask(f"{hub.endpoint}/{REPO}/resolve/main/{FIRST_SHARD}").headers["location"]
    got = ask(link, Range=asked)
    assert (got.status, got.headers.get("content-range"), got.body) == (status, content_range, body)


def test_if_range_with_another_content_gets_the_whole_file(hub: Running) -> None:
    link = ask(f"{hub.endpoint}/{REPO}/resolve/main/{FIRST_SHARD}").headers["location"]
    etag = ask(link, "HEAD").headers["etag"]
    assert ask(link, Range="bytes=1-2", If_Range=etag).status == 206
    assert ask(link, Range="bytes=1-2", If_Range='"other"').status == 200


def test_range_of_an_empty_file_cannot_be_satisfied(hub: Running) -> None:
    got = ask(f"{hub.endpoint}/{REPO}/resolve/main/empty", Range="bytes=0-0")
    assert (got.status, got.headers["content-range"]) == (416, "bytes */0")


@pytest.mark.parametrize(
    ("path", "token", "status", "code"),
    [
        ("api/models/lab/none", "", 401, "RepoNotFound"),
        ("api/models/lab/none", READER, 404, "RepoNotFound"),
        ("api/models/lab/tiny", "hf_bad", 401, None),
        ("api/models/lab/tiny/revision/nope", "", 404, "RevisionNotFound"),
        ("api/models/lab/tiny/tree/main/nope", "", 404, "EntryNotFound"),
        ("lab/tiny/resolve/nope/config.json", "", 404, "RevisionNotFound"),
        ("lab/tiny/resolve/main/nope", "", 404, "EntryNotFound"),
        ("lab/tiny/resolve/main/../../../tokens.json", "", 404, "EntryNotFound"),
        ("api/models/lab/gated", "", 200, None),
        ("lab/gated/resolve/main/config.json", "", 401, "GatedRepo"),
        ("lab/gated/resolve/main/config.json", "hf_other", 403, "GatedRepo"),
        ("lab/gated/resolve/main/config.json", READER, 200, None),
        ("api/models/lab/private", "", 401, "RepoNotFound"),
        ("api/models/lab/private", "hf_other", 404, "RepoNotFound"),
        ("api/models/lab/private", READER, 200, None),
        ("files/../tokens.json", "", 404, "EntryNotFound"),
        ("files/%2e%2e/tokens.json", "", 404, "EntryNotFound"),
        ("files/runtimes", "", 404, "EntryNotFound"),
        ("nothing", "", 404, None),
    ],
)
def test_refusals_are_told_apart(hub: Running, path: str, token: str, status: int, code: str | None) -> None:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    got = ask(f"{hub.endpoint}/{path}", **headers)
    assert (got.status, got.headers.get("x-error-code")) == (status, code)


def test_renamed_repository_redirects_on_the_same_host(hub: Running) -> None:
    for path in ("lab/old/resolve/main/config.json", "api/models/lab/old/tree/main?recursive=true"):
        got = ask(f"{hub.endpoint}/{path}")
        assert got.status == 307
        assert got.headers["location"] == "/" + path.replace("lab/old", REPO)


def test_links_are_refused_when_changed_or_old(hub: Running, tmp_path: Path) -> None:
    link = ask(f"{hub.endpoint}/{REPO}/resolve/main/{FIRST_SHARD}").headers["location"]
    assert ask(link).status == 200
    assert ask(link.replace("Signature=", "Signature=0")).status == 403
    assert ask(link.partition("?")[0]).status == 403
    with small_hub(tmp_path / "second", link_seconds=-1) as old:
        late = ask(f"{old.endpoint}/{REPO}/resolve/main/{FIRST_SHARD}").headers["location"]
        got = ask(late)
        assert (got.status, b"RequestExpired" in got.body) == (403, True)


def test_plain_files_have_ranges(hub: Running) -> None:
    url = f"{hub.endpoint}/files/runtimes/env.tar.zst"
    whole = ask(url)
    assert whole.body == SHARD
    got = ask(url, Range="bytes=10-11", If_Range=whole.headers["etag"])
    assert (got.status, got.body) == (206, SHARD[10:12])


def test_the_log_proves_what_was_fetched_and_tells_leaks(hub: Running, tmp_path: Path) -> None:
    url = f"{hub.endpoint}/{REPO}/resolve/main/{FIRST_SHARD}"
    link = ask(url, Authorization=f"Bearer {READER}").headers["location"]
    ask(link, Range="bytes=0-9")
    ask(link, "HEAD", Authorization="Bearer x")
    resolved, part, leaked = logged(tmp_path, 3)
    assert (resolved["status"], resolved["had_authorization"], resolved["leak"]) == (302, True, False)
    assert (part["server"], part["range"], part["status"], part["bytes"]) == ("cdn", "bytes=0-9", 206, 10)
    assert (part["client"], part["leak"], part["broken"]) == ("127.0.0.1", False, False)
    assert (leaked["leak"], leaked["bytes"]) == (True, 0)
    assert READER not in (tmp_path / "log").read_text()
