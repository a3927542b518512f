"""`k3ctl validate`: every problem of the inventory at once."""

from __future__ import annotations

from k3ctl.commands.output import Output
from k3ctl.commands.session import load_plan
from k3ctl.errors import ConfigError, ExitCode


def validate(inventory: str, out: Output) -> int:
    """Say what the inventory is, or everything that is wrong with it."""
    try:
        _cluster, plan, summary = load_plan(inventory)
    except ConfigError as error:
        if out.form == "json":
            out.json({"ok": False, "problems": [vars(problem) for problem in error.problems]})
        code = out.error(error)
        count = len(error.problems)
        out.line(f"{inventory}: {count} problem{'' if count == 1 else 's'}")
        return code
    if out.form == "json":
        out.json({"ok": True, "problems": [], "summary": summary, "cluster": plan.cluster})
    else:
        out.text(f"{inventory}: good. {summary}")
    return int(ExitCode.OK)
