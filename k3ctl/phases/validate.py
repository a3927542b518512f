"""The first phase: read the inventory and cluster.yml and judge both, before any host is touched."""

from __future__ import annotations

from collections.abc import Callable

from k3ctl.cluster import Cluster


def validate(path: str, load: Callable[[str], Cluster]) -> tuple[Cluster, str]:
    """The cluster and one line of what was found. Raises ConfigError with every problem."""
    cluster = load(path)
    return cluster, summary(cluster)


def summary(cluster: Cluster) -> str:
    """'2 nodes: k3lab1 (head), k3lab2; platform lab; model kimi-k3-mini; engine vllm-cpu'."""
    names = [node.name for node in cluster.inventory.nodes]
    names[0] += " (head)"
    count = "1 node" if len(names) == 1 else f"{len(names)} nodes"
    spec = cluster.spec
    return f"{count}: {', '.join(names)}; platform {spec.platform}; model {spec.model}; engine {spec.engine}"
