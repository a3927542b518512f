"""What the host's own name and the peers' names resolve to here."""

from __future__ import annotations

import socket
import threading
from typing import Any

_LIMIT_S = 2.5


def collect(request: dict[str, Any]) -> dict[str, Any]:
    """Request: peers = [{"name", "address"}]. Each name gives {"name", "addresses"} or {"name", "error"}.

    All names are asked at once: a dead DNS server costs seconds a name.
    """
    own = socket.gethostname()
    names = [own] + [peer["name"] for peer in request.get("peers") or []]
    answers: dict[str, dict[str, Any]] = {}
    threads = [threading.Thread(target=_resolve, args=(name, answers), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_LIMIT_S)
    late: dict[str, Any] = {"error": "no answer within %g s" % _LIMIT_S}
    asked = [dict(answers.get(name, late), name=name) for name in names]
    return {"own": asked[0], "peers": asked[1:]}


def _resolve(name: str, answers: dict[str, dict[str, Any]]) -> None:
    try:
        found = socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)
        answers[name] = {"addresses": sorted({str(entry[4][0]) for entry in found})}
    except (OSError, UnicodeError) as error:
        answers[name] = {"error": str(error)}
