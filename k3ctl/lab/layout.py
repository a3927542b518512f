"""Where everything of a lab lies on the outer machine, and what its links, namespaces and machines are called."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

STATE_ROOT = Path("/var/lib/k3ctl-lab")
CACHE_ROOT = Path("/var/cache/k3ctl-lab")


@dataclass(frozen=True)
class Layout:
    """Paths and names of one lab. `prefix` (8 characters) is in the name of all that the lab makes."""

    name: str
    inventory: Path

    @property
    def prefix(self) -> str:
        """k3 and six hex digits from name and path: leaves seven characters in a link name (the kernel allows 15)."""
        return "k3" + hashlib.sha256(f"{self.name}\0{self.inventory}".encode()).hexdigest()[:6]

    @property
    def state(self) -> Path:
        """Folder of this lab; destroy removes it."""
        return STATE_ROOT / self.name

    @property
    def ssh(self) -> Path:
        """Folder of the lab's key, the machines' host keys and known_hosts."""
        return self.state / "ssh"

    @property
    def key(self) -> Path:
        """Private key that opens every machine."""
        return self.ssh / "id_ed25519"

    @property
    def record(self) -> Path:
        """What was made, as JSON."""
        return self.state / "lab.json"

    @property
    def faults(self) -> Path:
        """Faults that are active, as JSON."""
        return self.state / "faults.json"

    @property
    def hub(self) -> Path:
        """Folder of the hub's service; its data is in `data`."""
        return self.state / "hub"

    @property
    def lock(self) -> Path:
        """Lock file of this lab; outside of the state folder, which destroy removes."""
        return CACHE_ROOT / "locks" / f"{self.name}.lock"

    def machine(self, host: str) -> Path:
        """Folder of one machine: root (the mounted overlay), upper, work, console.log."""
        return self.state / "machines" / host

    def unit(self, host: str) -> str:
        """Name of one machine, of its namespace and of its service."""
        return f"{self.prefix}-{host}"

    @property
    def management_bridge(self) -> str:
        """Bridge of the management network; it holds the gateway address."""
        return self.prefix + "m"

    @property
    def fabric_bridge(self) -> str:
        """Bridge of the fabric network; it has no address, the outer machine is not on it."""
        return self.prefix + "f"

    def management_link(self, index: int) -> str:
        """Outer end of a machine's eth0."""
        return f"{self.prefix}m{index}"

    def fabric_link(self, index: int) -> str:
        """Outer end of a machine's eth1."""
        return f"{self.prefix}f{index}"
