"""`k3ctl plan`: what will run on every rank, without touching a host."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3ctl.cluster import Cluster
from k3ctl.commands.output import Output
from k3ctl.commands.session import load_plan
from k3ctl.errors import ConfigError, ExitCode, Problem
from k3ctl.plan import Plan


@dataclass(frozen=True)
class PlanOptions:
    """What the command line asks of `plan`. Empty texts: not given.

    `show` is `rank N`, `wan` a rate such as 10Gbit, of each node. `explain` tells every reason and source.
    """

    inventory: str
    engine: str = ""
    engine_version: str = ""
    explain: bool = False
    show: str = ""
    wan: str = ""
    diff: bool = False


def plan(options: PlanOptions, out: Output) -> int:
    """Print the plan, one rank's texts, or what differs from what was launched last."""
    rate = None
    if options.wan:
        from k3ctl.planner.times import wan_rate

        rate = wan_rate(options.wan)
    cluster, made, _summary = load_plan(
        options.inventory, engine=options.engine, engine_version=options.engine_version, wan=rate
    )
    if options.show:
        _show(made, options.show, out)
    elif options.diff:
        _diff(made, out)
    elif out.form == "json":
        out.json(as_data(made))
    else:
        _tables(cluster, made, out, explain=options.explain)
    return int(ExitCode.OK)


def as_data(made: Plan) -> dict[str, Any]:
    """The plan as JSON has it: lists for tuples, the distances with their percentages."""
    data: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(made)))
    for entry, distance in zip(data["distances"], made.distances, strict=True):
        entry["percent"] = distance.percent
    return data


def _tables(cluster: Cluster, made: Plan, out: Output, *, explain: bool) -> None:
    from k3ctl.view import plan_tables

    out.data.print(plan_tables.overview(made))
    for section in plan_tables.sections(made, explain=explain):
        out.data.print(section)
    if explain:
        out.data.print(plan_tables.origins_table(cluster))


def _show(made: Plan, asked: str, out: Output) -> None:
    from k3ctl.launch.show import rank_number, rank_text

    text = rank_text(made, rank_number(asked))
    if out.form == "json":
        out.json(dataclasses.asdict(text))
    else:
        for line in text.lines():
            out.text(line)


def _diff(made: Plan, out: Output) -> None:
    from k3ctl.planner.difference import differences, restarts

    run, before = launched(made.cluster)
    found = differences(before, as_data(made))
    affected = restarts(found, [node.name for node in made.nodes])
    if out.form == "json":
        out.json({"run": run, "differences": [vars(one) for one in found], "restarts": list(affected)})
        return
    if not found:
        out.text(f"no change: the plan is that of {run}")
        return
    from k3ctl.view import plan_tables

    out.text(f"against {run}:")
    out.data.print(plan_tables.difference_table(found))
    out.text(f"`up` would restart: {', '.join(affected)}" if affected else "`up` would restart nothing")


def launched(cluster: str) -> tuple[str, Mapping[str, Any]]:
    """(name of the run, its plan) of the last run that got as far as the launch. ConfigError when there is none."""
    from k3ctl.edge.store import state_home

    runs = state_home() / cluster / "runs"
    folders = sorted((path for path in runs.glob("*") if path.is_dir() and not path.is_symlink()), reverse=True)
    for folder in folders:
        result, stored = _read(folder / "result.json"), _read(folder / "plan.json")
        phase = result.get("phases", {}).get("launch", {})
        if stored and phase.get("status") in ("changed", "unchanged") and phase.get("said"):
            return f"run {folder.name} ({result.get('command', '?')})", stored
    raise ConfigError(
        Problem(
            what=f"nothing was launched for {cluster} from here",
            file=str(runs),
            fix="run `k3ctl up` first; `k3ctl plan` without --diff shows the plan",
        )
    )


def _read(path: Path) -> dict[str, Any]:
    """A JSON object of a file; empty when there is none or it is torn."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
