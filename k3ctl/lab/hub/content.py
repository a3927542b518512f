"""The bytes: resolve (small files at once, LFS by a signed link), the content network, plain files."""

from __future__ import annotations

from urllib.parse import quote

from k3ctl.lab.hub.access import refusal
from k3ctl.lab.hub.links import LinkSigner
from k3ctl.lab.hub.messages import Reply, Request, error_reply, file_reply
from k3ctl.lab.hub.store import Entry, HubStore


def resolve(store: HubStore, signer: LinkSigner, request: Request) -> Reply:
    """GET or HEAD /<org>/<name>/resolve/<revision>/<path>."""
    segments = request.segments
    name, revision, path = "/".join(segments[:2]), segments[3], "/".join(segments[4:])
    repo = store.repo(name)
    if repo is not None and repo.moved_to:
        return Reply(307, {"Location": request.path.replace(name, repo.moved_to, 1)})
    said_no = refusal(store, request, name, repo, contents=True)
    if said_no is not None or repo is None:
        return said_no or error_reply(404, "RepoNotFound", "Repository not found")
    commit = repo.resolve(revision)
    if commit is None:
        return error_reply(404, "RevisionNotFound", f"Invalid rev id: {revision}")
    headers = {"X-Repo-Commit": commit.id}
    entry = commit.entry(path)
    if entry is None:
        return error_reply(404, "EntryNotFound", f"{path} does not exist on {commit.id}", headers)
    if entry.lfs:
        return _redirect(signer, request, name, entry, headers)
    kind = {"Content-Type": "text/plain; charset=utf-8", "Content-Disposition": _disposition(path)}
    return file_reply(request, store.blob(entry.sha256), f'"{entry.oid}"', {**headers, **kind})


def cdn(store: HubStore, signer: LinkSigner, request: Request) -> Reply:
    """GET or HEAD of a signed link; nobody is asked who they are."""
    reason = signer.refusal(request.path, request.query, now=request.now)
    if reason:
        body = f'<?xml version="1.0"?><Error><Code>AccessDenied</Code><Message>{reason}</Message></Error>'
        return Reply(403, {"Content-Type": "application/xml"}, body.encode())
    sha256, name = request.segments[3], request.segments[-1]
    return file_reply(request, store.blob(sha256), f'"{sha256}"', {"Content-Disposition": _disposition(name)})


def plain(store: HubStore, request: Request) -> Reply:
    """GET or HEAD /files/<path>: what lies below the hub's files folder."""
    file = store.plain_file("/".join(request.segments[1:]))
    if file is None:
        return error_reply(404, "EntryNotFound", "no such file")
    stat = file.stat()
    return file_reply(request, file, f'"{stat.st_size:x}-{stat.st_mtime_ns:x}"', {})


def _redirect(signer: LinkSigner, request: Request, name: str, entry: Entry, headers: dict[str, str]) -> Reply:
    link = request.cdn_base + signer.path(name, entry.sha256, entry.path, now=request.now)
    said = {
        **headers,
        "Location": link,
        "X-Linked-Etag": f'"{entry.sha256}"',
        "X-Linked-Size": str(entry.size),
        "ETag": f'"{entry.oid}"',
        "Accept-Ranges": "bytes",
        "Content-Type": "text/plain; charset=utf-8",
    }
    return Reply(302, said, f"Found. Redirecting to {link}".encode())


def _disposition(path: str) -> str:
    name = path.rpartition("/")[2]
    return f"inline; filename*=UTF-8''{quote(name)}; filename=\"{name}\";" if name.isascii() else "inline"
