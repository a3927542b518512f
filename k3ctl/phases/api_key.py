"""The API key of the endpoint: made once and kept on the controller, or the content of the user's own file."""

from __future__ import annotations

import secrets
from pathlib import Path

from k3ctl.cluster import Cluster
from k3ctl.errors import ConfigError, Problem
from k3ctl.phases.base import Work
from k3ctl.phases.world import Store
from k3ctl.secret import Secret

NAME = "api_key"


def known_key(work: Work) -> Secret | None:
    """The key, None when it is still to be made. Makes nothing. ConfigError when the user's file cannot be used."""
    return of_cluster(work.cluster, work.world.store)


def of_cluster(cluster: Cluster, store: Store) -> Secret | None:
    """As known_key, for commands that run no phase."""
    setting = cluster.spec.security.api_key
    if setting == "generated":
        return store.secret(NAME)
    return _from_file(setting, cluster.spec_file)


def api_key(work: Work) -> Secret:
    """The key; made and kept when there is none yet."""
    key = known_key(work)
    if key is None:
        key = work.world.store.secret(NAME, make=lambda: "k3-" + secrets.token_urlsafe(32))
    if key is None:
        raise ConfigError(Problem(what="no API key could be made", fix="report this as a bug"))
    return key


def _from_file(path: str, spec_file: str) -> Secret:
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            Problem(
                what=f"the API key file cannot be read: {error}",
                file=spec_file,
                key="security.api_key",
                found=path,
                fix="name a readable file with the key on one line, or `generated`",
            )
        ) from error
    if not text or "\n" in text or not text.isascii() or not text.isprintable():
        raise ConfigError(
            Problem(
                what="the API key file must hold one line of printable ASCII",
                file=spec_file,
                key="security.api_key",
                found=f"{path}: {len(text.splitlines())} lines",
            )
        )
    return Secret(text)
