"""A capture: all that the nodes said, as they said it. Judging it again needs only the plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from k3ctl.facts.node import Heard, NodeFacts, parse_facts
from k3ctl.facts.pairs import NodeReach, PairFacts, parse_reach

SCHEMA = 1


@dataclass(frozen=True)
class PairRound:
    """The round over all pairs as it was heard: raw replies by node, and errors of nodes that gave none."""

    ports: tuple[int, ...] = ()
    ephemeral: int = 0
    replies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    without: str = ""

    def facts(self) -> PairFacts:
        """What it means."""
        nodes: dict[str, NodeReach] = {}
        errors = dict(self.errors)
        for node, raw in self.replies.items():
            parsed = parse_reach(node, raw)
            if isinstance(parsed, NodeReach):
                nodes[node] = parsed
            else:
                errors[node] = parsed
        return PairFacts(self.ports, self.ephemeral, nodes, errors, self.without)


@dataclass(frozen=True)
class Capture:
    """What every node answered, by node name, and the round over all pairs."""

    nodes: Mapping[str, Heard]
    pairs: PairRound = field(default_factory=PairRound)

    def facts(self) -> dict[str, NodeFacts]:
        """The facts of every node."""
        return {node: parse_facts(node, heard) for node, heard in self.nodes.items()}

    def to_json(self) -> str:
        """As a file."""
        nodes = {node: asdict(heard) for node, heard in self.nodes.items()}
        return (
            json.dumps({"schema": SCHEMA, "nodes": nodes, "pairs": asdict(self.pairs)}, indent=1, sort_keys=True) + "\n"
        )

    @classmethod
    def from_json(cls, text: str) -> Capture:
        """From a file. Raises ValueError when it is no capture; senseless facts inside it are for the checks."""
        body = json.loads(text)
        if not isinstance(body, dict) or body.get("schema") != SCHEMA or not isinstance(body.get("nodes"), dict):
            raise ValueError("not a capture of schema 1")
        nodes = {str(node): _heard(raw) for node, raw in body["nodes"].items()}
        return cls(nodes, _round(body.get("pairs")))


def _heard(raw: object) -> Heard:
    if not isinstance(raw, dict):
        return Heard(None, error="the capture holds no answer of this node")
    reply = raw.get("reply")
    error = raw.get("error")
    return Heard(
        reply if isinstance(reply, dict) else None,
        _number(raw.get("sent")),
        _number(raw.get("received")),
        str(error) if error else "",
    )


def _round(raw: object) -> PairRound:
    if not isinstance(raw, dict):
        return PairRound(without="the capture holds no round over pairs")
    ports, replies, errors = raw.get("ports"), raw.get("replies"), raw.get("errors")
    ephemeral = raw.get("ephemeral")
    return PairRound(
        ports=tuple(port for port in ports if isinstance(port, int)) if isinstance(ports, list) else (),
        ephemeral=ephemeral if isinstance(ephemeral, int) else 0,
        replies={str(n): r for n, r in replies.items() if isinstance(r, dict)} if isinstance(replies, dict) else {},
        errors={str(n): str(e) for n, e in errors.items()} if isinstance(errors, dict) else {},
        without=str(raw.get("without") or ""),
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, float) else 0.0
