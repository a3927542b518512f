"""`k3ctl status`: every node and rank, what failed last, whether the endpoint answers."""

from __future__ import annotations

from rich.text import Text

from k3ctl.commands.output import Output
from k3ctl.commands.session import open_session
from k3ctl.launch import ask
from k3ctl.phases.api_key import of_cluster
from k3ctl.watch import table
from k3ctl.watch.cluster_status import as_json, headline
from k3ctl.watch.collect import cluster_status

COLOURS = {
    "serving": "green",
    "loading": "cyan",
    "degraded": "red",
    "stopped": "yellow",
    "crash-loop": "red",
    "unknown": "magenta",
}


def status(inventory: str, out: Output) -> int:
    """One look. Exit status 0 only when it serves: a script can wait for it."""
    session = open_session(inventory, out.line)
    try:
        world = session.world
        seen = cluster_status(
            session.plan,
            session.node_names,
            agent=world.agent,
            http=world.http,
            clock=world.clock,
            payload=lambda node: ask.status(session.plan, node),
            key=of_cluster(session.cluster, world.store),
        )
    finally:
        session.close()
    if out.form == "json":
        out.json(as_json(seen))
        return int(seen.exit_code)
    out.data.print(Text(headline(seen), COLOURS[seen.verdict]), soft_wrap=True)
    rows = out.grid(*table.COLUMNS)
    for row in table.rows(seen):
        rows.add_row(*row)
    out.table(rows)
    for line in table.failure_lines(seen):
        out.text(line)
    return int(seen.exit_code)
