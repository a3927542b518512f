"""What the nodes found out about the network between them: the replies of `k3node reach`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from k3ctl.facts.section import Bytes, Count, Fact, PortNumber, Seconds


class Link(Fact):
    """One node's try to reach one peer on one port. Times in seconds, None where it did not come so far."""

    to: str
    port: PortNumber
    result: str
    detail: str = ""
    connect_s: Seconds | None = None
    echo_s: Seconds | None = None
    echoed_bytes: Bytes = 0
    tries: Count = 1


class ListenState(Fact):
    """Whether the node could listen on a port of the round; `error` is the system's word when not."""

    port: PortNumber
    error: str | None = None


class NodeReach(Fact):
    """One node's reply."""

    node: str
    listening: tuple[ListenState, ...]
    links: tuple[Link, ...]


@dataclass(frozen=True)
class PairFacts:
    """The round over all pairs. `ports` were tried, `ephemeral` is the one of them that no launch names.

    `errors` maps a node to why it gave no reply; `without` says why there was no round at all.
    """

    ports: tuple[int, ...] = ()
    ephemeral: int = 0
    nodes: Mapping[str, NodeReach] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    without: str = ""


def parse_reach(node: str, reply: Mapping[str, Any]) -> NodeReach | str:
    """One node's reply, or in words why it makes no sense."""
    try:
        found = NodeReach.model_validate_json(json.dumps(reply))
    except (ValidationError, ValueError, RecursionError) as error:
        return f"what reach said makes no sense: {str(error).splitlines()[0]}"
    return found if found.node == node else f"reach answered for {found.node!r}"
