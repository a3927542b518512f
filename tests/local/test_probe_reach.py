"""The round over all pairs: real sockets on loopback addresses, one verb a node, all at once."""

from __future__ import annotations

import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from k3ctl.facts.pairs import NodeReach, parse_reach
from k3ctl.node import reach


def free_ports(count: int) -> list[int]:
    """Ports that nobody holds now, below the range from which clients get theirs."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as held:
            try:
                held.bind(("", port))
            except OSError:
                continue
        found.append(port)
    return found


def payloads(count: int, ports: list[int], seconds: float = 5.0) -> list[dict[str, Any]]:
    """What each of `count` nodes is asked; node i is at 127.77.0.i."""
    nodes = [{"name": f"node{i}", "address": f"127.77.0.{i}"} for i in range(1, count + 1)]
    return [
        {"own": own, "peers": [p for p in nodes if p is not own], "ports": ports, "seconds": seconds} for own in nodes
    ]


def rounds(asked: list[dict[str, Any]], apart_s: float = 0.0) -> list[NodeReach]:
    """All nodes at once, each a little later than the one before."""

    def one(place: int) -> NodeReach:
        time.sleep(place * apart_s)
        reply = parse_reach(asked[place]["own"]["name"], reach.run(asked[place]))
        assert isinstance(reply, NodeReach), reply
        return reply

    with ThreadPoolExecutor(max_workers=len(asked)) as pool:
        return list(pool.map(one, range(len(asked))))


def listens(address: str, port: int) -> bool:
    """Does anything answer there?"""
    try:
        socket.create_connection((address, port), timeout=0.5).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(("count", "ports"), [(1, 1), (2, 1), (2, 3), (4, 2)])
def test_every_pair_on_every_port(count: int, ports: int) -> None:
    held = free_ports(ports)
    began = time.monotonic()
    replies = rounds(payloads(count, held, seconds=30.0))
    assert time.monotonic() - began < 10  # it ends when all is seen, not when the time is up
    for reply in replies:
        assert len(reply.links) == (count - 1) * ports
        assert {link.result for link in reply.links} <= {"ok"}
        assert all(link.echoed_bytes == 65536 for link in reply.links)
        assert [door.error for door in reply.listening] == [None] * ports
    assert not any(listens(f"127.77.0.{i}", port) for i in range(1, count + 1) for port in held)


def test_nodes_may_start_apart() -> None:
    replies = rounds(payloads(3, free_ports(1), seconds=20.0), apart_s=0.4)
    assert {link.result for reply in replies for link in reply.links} == {"ok"}
    assert any(link.tries > 1 for link in replies[0].links)


def test_a_peer_that_is_not_there_is_refused_when_the_time_is_up() -> None:
    asked = payloads(3, free_ports(1), seconds=1.0)
    began = time.monotonic()
    one, two = rounds(asked[:2])
    assert time.monotonic() - began < 8
    for reply, peer in ((one, "node2"), (two, "node1")):
        assert {link.to: link.result for link in reply.links} == {peer: "ok", "node3": "refused"}


def test_a_port_that_is_taken_is_said() -> None:
    (port,) = free_ports(1)
    with socket.create_server(("127.77.0.1", port)):
        one, two = rounds(payloads(2, [port], seconds=1.0))
    assert one.listening[0].error == "Address already in use"
    assert two.listening[0].error is None
    assert [link.result for link in one.links] == ["ok"]
    assert [link.result for link in two.links] == ["stalled"]  # something holds the port and never answers


def test_something_else_that_answers_there() -> None:
    (port,) = free_ports(1)

    def answer(server: socket.socket) -> None:
        link, _ = server.accept()
        with link:
            link.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
            link.recv(100_000)

    with socket.create_server(("127.77.0.1", port)) as server:
        threading.Thread(target=answer, args=(server,), daemon=True).start()
        (reply,) = rounds(payloads(2, [port], seconds=1.0)[1:])
    assert reply.links[0].result in ("wrong_echo", "stalled")


def test_strangers_get_no_echo() -> None:
    (port,) = free_ports(1)
    asked = payloads(2, [port], seconds=1.5)[:1]
    with ThreadPoolExecutor(max_workers=1) as pool:
        waiting = pool.submit(rounds, asked)
        time.sleep(0.3)
        with socket.create_connection(("127.77.0.1", port), timeout=1, source_address=("127.77.0.9", 0)) as link:
            try:
                link.sendall(b"hello")
                link.shutdown(socket.SHUT_WR)
                heard = link.recv(10)
            except OSError:  # cut off, at whichever step
                heard = b""
        waiting.result()
    assert heard == b""


def test_an_address_that_is_not_ours() -> None:
    (port,) = free_ports(1)
    asked = payloads(2, [port], seconds=0.5)[0]
    asked["own"] = {"name": "node1", "address": "192.0.2.77"}
    (reply,) = rounds([asked])
    assert reply.listening[0].error == "Cannot assign requested address"
    assert reply.links[0].result == "no_address"


def test_ipv6() -> None:
    (port,) = free_ports(1)
    own = {"name": "node1", "address": "::1"}
    asked = {"own": own, "peers": [{"name": "node2", "address": "::1"}], "ports": [port], "seconds": 2}
    (reply,) = rounds([asked])
    assert [link.result for link in reply.links] == ["ok"]


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"node": "node1", "links": [], "listening": "x"},
        {"node": "node2", "links": [], "listening": []},
        {"links": 3},
    ],
)
def test_a_reply_that_makes_no_sense_is_words(reply: dict[str, Any]) -> None:
    assert isinstance(parse_reach("node1", reply), str)
