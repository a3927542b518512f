"""The catalogue: /api/models/... (what there is, at which commit, with which digests)."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

from k3ctl.lab.hub.access import refusal
from k3ctl.lab.hub.messages import Reply, Request, error_reply, json_reply
from k3ctl.lab.hub.store import Commit, Entry, HubStore, Repo

PAGE = 1000  # entries of a tree listing, as on the real hub


def answer(store: HubStore, request: Request, page: int) -> Reply:
    """Answer a request below /api/. `page` is the largest number of entries of one tree page."""
    segments = request.segments
    if segments == ["api", "whoami-v2"]:
        known = bool(request.token) and request.token in store.grants()
        return json_reply({"name": "lab", "type": "user"}) if known else error_reply(401, "", "Invalid credentials")
    if segments[1:2] != ["models"] or len(segments) < 4:
        return error_reply(404, "", "Not found")
    name = "/".join(segments[2:4])
    repo = store.repo(name)
    if repo is not None and repo.moved_to:
        target = request.path.replace(name, repo.moved_to, 1) + (f"?{request.query}" if request.query else "")
        return Reply(307, {"Location": target})
    said_no = refusal(store, request, name, repo, contents=False)
    if said_no is not None or repo is None:
        return said_no or error_reply(404, "RepoNotFound", "Repository not found")
    return _of_repo(request, repo, segments[4:], page)


def _of_repo(request: Request, repo: Repo, rest: list[str], page: int) -> Reply:
    if rest == ["refs"]:
        return json_reply(_refs(repo))
    verb, revision = (rest[0], rest[1]) if len(rest) > 1 else ("revision", "main")
    commit = repo.resolve(revision)
    if commit is None:
        return error_reply(404, "RevisionNotFound", f"Invalid rev id: {revision}")
    if verb == "revision":
        return json_reply(_info(repo, commit, blobs=request.asked("blobs").lower() == "true"))
    if verb == "tree":
        return _tree(request, commit, "/".join(rest[2:]), page)
    if verb == "paths-info" and request.method == "POST":
        return json_reply(_paths_info(request, commit))
    return error_reply(404, "", "Not found")


def _refs(repo: Repo) -> dict[str, Any]:
    def listed(kind: str, refs: dict[str, str]) -> list[dict[str, str]]:
        return [{"name": n, "ref": f"refs/{kind}/{n}", "targetCommit": c} for n, c in sorted(refs.items())]

    return {"branches": listed("heads", dict(repo.branches)), "tags": listed("tags", dict(repo.tags)), "converts": []}


def _info(repo: Repo, commit: Commit, *, blobs: bool) -> dict[str, Any]:
    siblings = [_sibling(e, blobs=blobs) for e in commit.entries]
    return {
        "id": repo.name,
        "modelId": repo.name,
        "author": repo.name.partition("/")[0],
        "sha": commit.id,
        "lastModified": commit.date,
        "createdAt": repo.commits[0].date,
        "private": repo.access == "private",
        "gated": "auto" if repo.access == "gated" else False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": [],
        "siblings": siblings,
    }


def _sibling(entry: Entry, *, blobs: bool) -> dict[str, Any]:
    said: dict[str, Any] = {"rfilename": entry.path}
    if blobs:
        said |= {"size": entry.size, "blobId": entry.oid}
        if entry.lfs:
            said["lfs"] = {"sha256": entry.sha256, "size": entry.size, "pointerSize": entry.pointer_size}
    return said


def _file(entry: Entry) -> dict[str, Any]:
    said: dict[str, Any] = {"type": "file", "oid": entry.oid, "size": entry.size, "path": entry.path}
    if entry.lfs:
        said["lfs"] = {"oid": entry.sha256, "size": entry.size, "pointerSize": entry.pointer_size}
    return said


def _folder(commit: Commit, path: str) -> dict[str, Any]:
    inside = "\n".join(f"{e.oid} {e.path}" for e in commit.entries if e.path.startswith(f"{path}/"))
    return {
        "type": "directory",
        "oid": hashlib.sha1(inside.encode(), usedforsecurity=False).hexdigest(),
        "size": 0,
        "path": path,
    }


def _folders(commit: Commit) -> list[str]:
    parts = (e.path.split("/") for e in commit.entries)
    return sorted({"/".join(p[:i]) for p in parts for i in range(1, len(p))})


def _listing(commit: Commit, folder: str, *, recursive: bool) -> list[tuple[str, Entry | None]]:
    """All that a tree request lists, by path: files with their entry, folders with None."""
    prefix = f"{folder}/" if folder else ""
    found: dict[str, Entry | None] = dict.fromkeys(_folders(commit))
    found |= {e.path: e for e in commit.entries}
    inside = (path for path in sorted(found) if path.startswith(prefix))
    return [(path, found[path]) for path in inside if recursive or "/" not in path[len(prefix) :]]


def _tree(request: Request, commit: Commit, folder: str, page: int) -> Reply:
    listing = _listing(commit, folder, recursive=request.asked("recursive").lower() in ("true", "1"))
    if folder and not listing:
        return error_reply(404, "EntryNotFound", f"{folder} does not exist on {commit.id}")
    asked = request.asked("limit")
    size = min(page, int(asked)) if asked.isdigit() and int(asked) else page
    try:
        after = base64.urlsafe_b64decode(request.asked("cursor")).decode()
    except ValueError:
        return error_reply(400, "", "Invalid cursor")
    left = [item for item in listing if item[0] > after]
    headers = {}
    if len(left) > size:
        cursor = base64.urlsafe_b64encode(left[size - 1][0].encode()).decode()
        kept = {k: v[-1] for k, v in parse_qs(request.query).items() if k != "cursor"}
        link = f"{request.base}{quote(request.path, safe='/%')}?{urlencode({**kept, 'cursor': cursor})}"
        headers["Link"] = f'<{link}>; rel="next"'
    return json_reply([_file(e) if e else _folder(commit, path) for path, e in left[:size]], headers)


def _paths_info(request: Request, commit: Commit) -> list[dict[str, Any]]:
    if request.headers.get("content-type", "").startswith("application/json"):
        wanted = json.loads(request.body or b"{}").get("paths", [])
    else:
        wanted = parse_qs(request.body.decode()).get("paths", [])
    folders = set(_folders(commit))
    entries = {e.path: e for e in commit.entries}
    return [
        _file(entries[path]) if path in entries else _folder(commit, path)
        for path in wanted
        if path in entries or path in folders
    ]
