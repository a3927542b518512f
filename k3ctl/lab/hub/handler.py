"""One connection of the hub: reads requests, applies faults, sends answers, writes the log."""

from __future__ import annotations

import io
import re
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from ipaddress import ip_address
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import urlsplit

from k3ctl.lab.hub.faults import Rule
from k3ctl.lab.hub.log import Served
from k3ctl.lab.hub.messages import FilePart, Reply, Request, error_reply
from k3ctl.lab.hub.sending import hold, send_file, send_spoiled

if TYPE_CHECKING:
    from k3ctl.lab.hub.server import Listener

_LARGEST_REQUEST = 8 << 20
_PAGE = "<!DOCTYPE html><html><body><h1>Sign in to the network</h1></body></html>"


class Handler(BaseHTTPRequestHandler):
    """HTTP/1.1 with keep-alive; every answer has a Content-Length."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 300.0  # seconds without a byte from or to the client
    server: Listener

    def do_GET(self) -> None:
        """GET, HEAD and POST go one way."""
        self._serve()

    do_HEAD = do_GET
    do_POST = do_GET

    def version_string(self) -> str:
        """The Server header."""
        return "k3lab-hub"

    def log_message(self, format: str, *args: object) -> None:
        """Requests go to the request log; nothing is said on stderr."""

    def _serve(self) -> None:
        begun, wall = time.monotonic(), time.time()
        request = self._request(wall)
        if request is None:
            return
        rule = None
        try:
            if request.path.startswith("/_"):
                reply = self.server.hub.manage(request) if self._is_own_machine() else error_reply(404, "", "Not found")
            else:
                rule = self._fault(request)
                reply = self._answer(request, rule)
        except ValueError as error:
            reply = error_reply(400, "", f"Bad request: {error}")
        sent, broken = self._send(reply, rule)
        had = "authorization" in request.headers
        self.server.hub.log.write(
            Served(
                at=round(wall, 3),
                server=self.server.role,
                client=self.client_address[0],
                method=request.method,
                path=request.path,
                range=request.headers.get("range", ""),
                status=reply.status,
                bytes=sent,
                seconds=round(time.monotonic() - begun, 3),
                had_authorization=had,
                leak=had and (self.server.role == "cdn" or request.path.startswith("/cdn/")),
                fault=rule.kind if rule else "",
                broken=broken,
                agent=request.headers.get("user-agent", "").partition(";")[0],
            )
        )

    def _request(self, now: float) -> Request | None:
        """The request as the routes take it; None when it was answered already because it is too large."""
        length = int(self.headers.get("content-length") or 0)
        if length > _LARGEST_REQUEST:
            self.send_error(413)
            self.close_connection = True
            return None
        url = urlsplit(self.path)
        host = self.headers.get("host") or f"{self.server.host}:{self.server.port}"
        name = re.sub(r":\d+$", "", host)
        return Request(
            method=self.command,
            path=url.path,
            query=url.query,
            headers={k.lower(): v for k, v in self.headers.items()},
            body=self.rfile.read(length) if length else b"",
            base=f"http://{host}",
            cdn_base=f"http://{name}:{self.server.cdn_port}",
            now=now,
        )

    def _is_own_machine(self) -> bool:
        client = self.client_address[0]
        return ip_address(client).is_loopback or client == self.connection.getsockname()[0]

    def _fault(self, request: Request) -> Rule | None:
        return self.server.hub.faults.pick(
            path=request.path,
            method=request.method,
            client=self.client_address[0],
            server=self.server.role,
            range_header=request.headers.get("range", ""),
        )

    def _answer(self, request: Request, rule: Rule | None) -> Reply:
        kind = rule.kind if rule else ""
        if rule and kind == "delay":
            hold(self.connection, rule.seconds)
        if rule and kind == "status":
            return Reply(rule.status, rule.headers, rule.body.encode())
        if rule and kind == "html":
            return Reply(200, {"Content-Type": "text/html", **rule.headers}, (rule.body or _PAGE).encode())
        if kind == "expired":
            return Reply(403, {"Content-Type": "application/xml"}, b"<Error><Code>AccessDenied</Code></Error>")
        if kind == "ignore-range":
            request = replace(request, headers={k: v for k, v in request.headers.items() if k != "range"})
        reply = self.server.hub.answer(request)
        if rule and kind == "wrong-range" and isinstance(reply.body, FilePart):
            span = reply.body.span
            shift = rule.at or 1
            wrong = f"bytes {span.first + shift}-{span.last + shift}/{span.size + shift}"
            return replace(reply, headers={**reply.headers, "Content-Range": wrong})
        return reply

    def _send(self, reply: Reply, rule: Rule | None) -> tuple[int, bool]:
        """Send headers and body: (body bytes that left, whether the connection broke on the way)."""
        body = reply.body
        first, length = (body.span.first, body.span.length) if isinstance(body, FilePart) else (0, len(body))
        source: BinaryIO = body.path.open("rb") if isinstance(body, FilePart) else io.BytesIO(body)
        with source:
            try:
                self.send_response(reply.status)
                for name, value in {**reply.headers, "Content-Length": str(length)}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "HEAD" or not length:
                    return 0, False
                source.seek(first)
                if rule is None:
                    sent = send_file(self.connection, source, first, length)
                else:
                    sent = send_spoiled(self.connection, source, first, length, rule)
            except (ConnectionError, TimeoutError):
                self.close_connection = True
                return max(0, source.tell() - first), True
        if sent < length:
            self.close_connection = True
        return sent, sent < length
