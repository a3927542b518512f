"""Who may read what, and how the hub says no."""

from __future__ import annotations

from k3ctl.lab.hub.messages import Reply, Request, error_reply
from k3ctl.lab.hub.store import HubStore, Repo


def refusal(store: HubStore, request: Request, name: str, repo: Repo | None, *, contents: bool) -> Reply | None:
    """The answer that keeps this request out, or None.

    As the hub does it: without a token, a repository that is missing, private or misspelt looks the same (401); a
    gated one shows its listing to all and its contents to those who were let in (401 without token, 403 with one).
    """
    grants = store.grants()
    if request.token and request.token not in grants:
        return error_reply(401, "", "Invalid credentials in Authorization header")
    granted = name in grants.get(request.token, ())
    if repo is None or (repo.access == "private" and not granted):
        if request.token:
            return error_reply(404, "RepoNotFound", "Repository not found")
        return error_reply(401, "RepoNotFound", "Invalid username or password.")
    if repo.access == "gated" and contents and not granted:
        reason = (
            f"Access to model {name} is restricted and you are not in the authorized list. "
            f"Visit {request.base}/{name} to ask for access."
        )
        return error_reply(403 if request.token else 401, "GatedRepo", reason)
    return None
