"""The outside world as phases see it. The command line puts it together once the inventory is known to be good."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from k3ctl.protocols import Agent, Ansible, Clock, Http, Remote
from k3ctl.secret import Secret
from k3ctl.staging.manifest import Hub


class Store(Protocol):
    """The cluster's folder on the controller (mode 0700): secrets, known_hosts, notes, run directories."""

    def secret(self, name: str, make: Callable[[], str] | None = None) -> Secret | None:
        """The secret of that name; made by `make` and kept (0600) when there is none yet; None without `make`."""

    def note(self, name: str) -> str | None:
        """What `keep` kept under that name, or None."""

    def keep(self, name: str, text: str) -> None:
        """Keep a small text between runs, atomically."""

    def write(self, name: str, text: str) -> None:
        """Write a file of this run's own directory, atomically."""

    def append(self, name: str, line: str) -> None:
        """Add one line to a file of this run's own directory."""


@dataclass(frozen=True)
class World:
    """The edges, each behind its protocol, bound to one cluster."""

    remote: Remote
    agent: Agent
    ansible: Ansible
    http: Http
    hub: Hub
    clock: Clock
    store: Store
