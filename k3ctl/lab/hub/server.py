"""The hub's two listeners: the hub itself, and the content network on another port, so that it is another origin."""

from __future__ import annotations

import json
import socket
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from k3ctl.errors import ConfigError
from k3ctl.lab.hub import api, content
from k3ctl.lab.hub.faults import Faults, parse
from k3ctl.lab.hub.handler import Handler
from k3ctl.lab.hub.links import LinkSigner
from k3ctl.lab.hub.log import RequestLog
from k3ctl.lab.hub.messages import Reply, Request, error_reply, json_reply
from k3ctl.lab.hub.store import HubStore

_POLL_S = 0.05  # how soon a listener sees that it must end


@dataclass(frozen=True)
class Hub:
    """What the hub serves and how. `page`: most entries of one tree page."""

    store: HubStore
    signer: LinkSigner = field(default_factory=lambda: LinkSigner(3600.0))
    faults: Faults = field(default_factory=Faults)
    log: RequestLog = field(default_factory=lambda: RequestLog(None))
    page: int = api.PAGE

    def answer(self, request: Request) -> Reply:
        """Find the route of a request and answer it."""
        segments = request.segments
        if segments[0] == "api":
            return api.answer(self.store, request, self.page)
        if request.method == "POST":
            return error_reply(405, "", "Method not allowed")
        if segments[0] == "cdn" and len(segments) >= 5:
            return content.cdn(self.store, self.signer, request)
        if segments[0] == "files":
            return content.plain(self.store, request)
        if len(segments) >= 5 and segments[2] == "resolve":
            return content.resolve(self.store, self.signer, request)
        return error_reply(404, "", "Not found")

    def manage(self, request: Request) -> Reply:
        """/_faults: read the fault script in force (GET) or put another one (POST); for the hub's own machine."""
        if request.segments != ["_faults"]:
            return error_reply(404, "", "Not found")
        if request.method == "POST":
            try:
                self.faults.replace(parse(request.body.decode(), "POST /_faults"))
            except (ConfigError, UnicodeDecodeError) as error:
                return error_reply(400, "", str(error))
        return json_reply(self.faults.report())


class Listener(socketserver.ThreadingTCPServer):
    """One port of the hub. `role` is hub or cdn; `cdn_port` is where links of this hub lead."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, hub: Hub, role: str) -> None:
        if ip_address(host).version == 6:
            self.address_family = socket.AF_INET6
        self.hub = hub
        self.role = role
        super().__init__((host, port), Handler)
        self.cdn_port = self.port

    @property
    def host(self) -> str:
        """The address that was bound."""
        return str(self.server_address[0])

    @property
    def port(self) -> int:
        """The port that was bound."""
        return int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of ours; anything else is told on stderr."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


@dataclass(frozen=True)
class Running:
    """A hub that serves. `endpoint` is what HF_ENDPOINT takes."""

    endpoint: str
    port: int
    cdn_port: int
    hub: Hub


@contextmanager
def serving(hub: Hub, host: str, port: int = 0, cdn_port: int | None = None) -> Iterator[Running]:
    """Serve until the block ends. `port` 0 takes a free one; `cdn_port` left out is the port after `port`."""
    listener = Listener(host, port, hub, "hub")
    try:
        cdn = Listener(host, (port + 1 if port else 0) if cdn_port is None else cdn_port, hub, "cdn")
    except OSError:
        listener.server_close()
        raise
    listener.cdn_port = cdn.port
    threads = [threading.Thread(target=s.serve_forever, args=(_POLL_S,), daemon=True) for s in (listener, cdn)]
    for thread in threads:
        thread.start()
    shown = f"[{host}]" if ":" in host else host
    try:
        yield Running(f"http://{shown}:{listener.port}", listener.port, cdn.port, hub)
    finally:
        for server in (listener, cdn):
            server.shutdown()
            server.server_close()
        hub.log.close()


def describe(running: Running) -> str:
    """One line of JSON for whoever started the hub: where it listens."""
    return json.dumps({"endpoint": running.endpoint, "port": running.port, "cdn_port": running.cdn_port})
