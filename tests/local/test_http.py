"""Asking an endpoint: directly, streamed, with a key, and through the SSH connection when it is not routed."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from k3ctl.edge.forward import Forward
from k3ctl.edge.http import HttpClient, address
from k3ctl.edge.ssh import FabricRemote
from k3ctl.errors import ConfigError, Problem, Unreachable
from k3ctl.inventory import SshTarget
from k3ctl.secret import Secret
from tests.local.sshd_fixtures import Farm, farm, free_port

__all__ = ["farm"]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path == "/slow":
            time.sleep(3)
        if self.path == "/drip":
            self.send_response(200)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for i in range(40):
                line = f"data: {i}\r\n".encode()
                try:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                except OSError:
                    return
                time.sleep(0.05)
            self.wfile.write(b"0\r\n\r\n")
            return
        if self.path == "/cut":
            self.send_response(200)
            self.send_header("content-length", "100")
            self.end_headers()
            self.wfile.write(b"half")
            self.close_connection = True
            return
        seen = {"method": self.command, "host": self.headers["host"], "auth": self.headers.get("authorization")}
        data = json.dumps({**seen, "body": body.decode()}).encode()
        self.send_response(404 if self.path == "/missing" else 200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("X-Thing", "Yes")
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = _answer

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield http.server_address[1]
        http.shutdown()


@pytest.fixture
def client() -> Iterator[HttpClient]:
    client = HttpClient()
    yield client
    client.close()


def test_an_answer_with_status_headers_and_body(client: HttpClient, server: int) -> None:
    reply = client.ask("POST", f"http://127.0.0.1:{server}/x", bearer=Secret("k3y"), json={"a": 1})
    seen = json.loads(reply.body)
    assert (reply.status, reply.headers["x-thing"]) == (200, "Yes")
    assert seen["auth"] == "Bearer k3y"
    assert json.loads(seen["body"]) == {"a": 1}
    assert client.ask("GET", f"http://127.0.0.1:{server}/missing").status == 404


def test_proxy_variables_are_ignored(client: HttpClient, server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    fresh = HttpClient()
    assert fresh.ask("GET", f"http://127.0.0.1:{server}/").status == 200
    fresh.close()


def test_lines_of_a_stream_come_as_they_are_sent(client: HttpClient, server: int) -> None:
    seen: list[float] = []
    reply = client.ask(
        "GET", f"http://127.0.0.1:{server}/drip", on_line=lambda _: seen.append(time.monotonic()), timeout_s=30
    )
    assert len(seen) == 40
    assert seen[-1] - seen[0] > 1
    assert reply.body.startswith(b"data: 0\r\n")


def test_an_answer_without_end_is_cut_at_the_limit(client: HttpClient, server: int) -> None:
    began = time.monotonic()
    with pytest.raises(Unreachable) as caught:
        client.ask("GET", f"http://127.0.0.1:{server}/drip", timeout_s=1)
    assert "no answer within 1 s" in caught.value.problems[0].found
    assert time.monotonic() - began < 3


@pytest.mark.parametrize(("path", "what"), [("slow", "answers too slowly"), ("cut", "broke off its answer")])
def test_answers_that_do_not_come(client: HttpClient, server: int, path: str, what: str) -> None:
    with pytest.raises(Unreachable) as caught:
        client.ask("GET", f"http://127.0.0.1:{server}/{path}", timeout_s=1)
    assert caught.value.problems[0].what == f"the endpoint {what}"


def test_a_refused_connection_is_final() -> None:
    class Never:
        def tcp(self, node: str, host: str, port: int, timeout_s: float = 10.0) -> socket.socket:
            pytest.fail("the address was reached: there is nothing to find another way to")

        def behind_jump(self, node: str) -> bool:
            return False

    client = HttpClient(Never(), "n1")
    with pytest.raises(Unreachable) as caught:
        client.ask("GET", f"http://127.0.0.1:{free_port()}/")
    assert caught.value.problems[0].what == "the endpoint refuses the connection"
    client.close()


def dead_end() -> tuple[list[socket.socket], int]:
    """A port that drops every SYN, as an address behind a firewall does."""
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen(0)
    sockets = [server]
    for _ in range(4):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(server.getsockname())
        sockets.append(sock)
    time.sleep(0.1)
    return sockets, server.getsockname()[1]


class Diverted:
    """SSH that leads every address to the test's own server: the address itself goes nowhere from here."""

    def __init__(self, remote: FabricRemote, port: int) -> None:
        self.remote, self.port = remote, port
        self.asked: list[tuple[str, int]] = []

    def tcp(self, node: str, host: str, port: int, timeout_s: float = 10.0) -> object:
        self.asked.append((host, port))
        return self.remote.tcp(node, "127.0.0.1", self.port, timeout_s)

    def behind_jump(self, node: str) -> bool:
        return self.remote.behind_jump(node)


def test_an_address_that_does_not_answer_is_asked_through_ssh(farm: Farm, server: int) -> None:
    sockets, port = dead_end()
    said: list[str] = []
    tunnel = Diverted(farm.remote(farm.sshd().target()), server)
    client = HttpClient(tunnel, "n1", say=said.append, direct_s=0.5)  # type: ignore[arg-type]
    url = f"http://127.0.0.1:{port}/"
    seen = json.loads(client.ask("GET", url, bearer=Secret("k")).body)
    assert seen["host"] == f"127.0.0.1:{port}", "the request itself is unchanged"
    assert seen["auth"] == "Bearer k"
    began = time.monotonic()
    lines: list[str] = []
    assert client.ask("GET", url + "drip", on_line=lines.append, timeout_s=20).status == 200
    assert client.ask("POST", url, json={"x": "y" * 300_000}).status == 200
    assert time.monotonic() - began < 15
    assert len(lines) == 40
    assert len(said) == 1
    assert said[0] == f"asking 127.0.0.1 port {port} through the SSH connection to n1: it does not answer directly"
    client.close()
    for sock in sockets:
        sock.close()


def test_behind_a_jump_host_the_key_goes_nowhere_else(farm: Farm, server: int) -> None:
    jump, end = farm.sshd(), farm.sshd()
    remote = farm.remote(end.target(jump=(f"127.0.0.1:{jump.port}",)))
    tunnel, said = Diverted(remote, server), list[str]()
    client = HttpClient(tunnel, "n1", say=said.append)  # type: ignore[arg-type]
    # This address answers here as well; it must not be asked directly.
    assert client.ask("GET", f"http://127.0.0.1:{server}/").status == 200
    assert tunnel.asked == [("127.0.0.1", server)]
    assert said[0].endswith("it is behind a jump host")
    client.close()


def test_what_the_node_cannot_reach_is_said_in_ssh_words(farm: Farm) -> None:
    jump, end = farm.sshd(), farm.sshd()
    remote = farm.remote(end.target(jump=(f"127.0.0.1:{jump.port}",)))
    client = HttpClient(remote, "n1")
    port = free_port()
    with pytest.raises(Unreachable) as caught:
        client.ask("GET", f"http://127.0.0.1:{port}/")
    assert caught.value.problems[0].what == f"nothing answers at 127.0.0.1 port {port}, asked from the host itself"
    assert caught.value.problems[0].node == "n1"
    client.close()


def test_ssh_that_is_down_is_said(farm: Farm) -> None:
    remote = farm.remote(SshTarget("127.0.0.1", free_port(), "x", jump=(f"127.0.0.1:{free_port()}",)))
    client = HttpClient(remote, "n1")
    with pytest.raises(Unreachable) as caught:
        client.ask("GET", "http://127.0.0.1:1/")
    assert caught.value.problems[0].what.startswith("the jump host")
    client.close()


def test_the_forward_is_private_and_goes_away() -> None:
    def fail() -> socket.socket:
        raise Unreachable(Problem(what="no"))

    forward = Forward(fail)
    folder = Path(forward.path).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(forward.path)
        assert sock.recv(1) == b""
    assert forward.failure is not None
    forward.close()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://10.0.0.1:8000/v1", ("10.0.0.1", 8000)),
        ("http://h", ("h", 80)),
        ("https://[fd00::1]/", ("fd00::1", 443)),
    ],
)
def test_addresses(url: str, expected: tuple[str, int]) -> None:
    assert address(url) == expected


@pytest.mark.parametrize("url", ["", "10.0.0.1:8000", "ftp://x", "http://"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ConfigError):
        address(url)
