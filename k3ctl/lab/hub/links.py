"""Signed links to contents, as a content network gives them: good for a time, without any token."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from urllib.parse import parse_qs, quote


class LinkSigner:
    """Makes and checks links. The key lives as long as the process: after a restart old links answer 403."""

    def __init__(self, lifetime_s: float) -> None:
        self.lifetime_s = lifetime_s
        self._key = secrets.token_bytes(32)

    def path(self, repo: str, sha256: str, name: str, *, now: float) -> str:
        """Path and query of a link to one content; the file's name is in it so that logs can be read."""
        expires = int(now + self.lifetime_s)
        path = f"/cdn/{repo}/{sha256}/{quote(name)}"
        return f"{path}?Expires={expires}&Signature={self._sign(path, expires)}"

    def refusal(self, path: str, query: str, *, now: float) -> str:
        """Why this link is not good; empty when it is. `path` as it came, still quoted."""
        said = parse_qs(query)
        try:
            expires, signature = int(said["Expires"][0]), said["Signature"][0]
        except (KeyError, ValueError):
            return "MissingKey"
        if not hmac.compare_digest(signature, self._sign(path, expires)):
            return "SignatureDoesNotMatch"
        return "" if now < expires else "RequestExpired"

    def _sign(self, path: str, expires: int) -> str:
        return hmac.new(self._key, f"{path}\n{expires}".encode(), hashlib.sha256).hexdigest()
