"""`k3ctl trust`: show the hosts' keys and remember those that are confirmed."""

from __future__ import annotations

import sys
from dataclasses import asdict

from k3ctl.commands.output import Output
from k3ctl.edge.ansible_inventory import load_cluster
from k3ctl.edge.keyscan import KeyScan
from k3ctl.edge.store import cluster_dir
from k3ctl.errors import ExitCode
from k3ctl.phases.trust import trust as run


def trust(inventory: str, replaced: tuple[str, ...], out: Output, *, yes: bool) -> int:
    """Ask on the terminal; without one nobody can answer, so that only -y trusts."""
    cluster = load_cluster(inventory)

    def ask(question: str) -> bool:
        if not sys.stdin.isatty():
            return False
        out.line(f"{question} [y/N]")
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    keys = KeyScan(cluster, cluster_dir(cluster.name))
    try:
        trusted = run(keys, ask=ask, say=out.line, yes=yes, replaced=replaced)
    finally:
        keys.close()
    if out.form == "json":
        out.json({"added": [asdict(v) for v in trusted.added], "same": [asdict(v) for v in trusted.same]})
    else:
        out.text(trusted.said)
    return int(ExitCode.OK)
