"""`k3ctl lab`: create, status, shell, fault and destroy a lab of real hosts on this computer.

Imports of what does the work are inside the functions: `k3ctl --help` must not pay for them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Annotated, Literal

import typer

from k3ctl.errors import ConfigError, ExitCode, K3ctlError, Problem

app = typer.Typer(
    name="lab",
    help="Real hosts on this computer: machines with systemd and SSH, simulated GPUs, a local model hub.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_DEFAULT = "inventories/lab"
Where = Annotated[str, typer.Argument(metavar="INVENTORY", help="Folder of the inventory that defines the lab.")]
WhereOption = Annotated[str, typer.Option("--inventory", "-i", help="Folder of the inventory that defines the lab.")]
Output = Annotated[Literal["table", "json"], typer.Option("--output", "-o", help="table or json.")]


def _say(text: str) -> None:
    typer.echo(f"[lab] {text}", err=True)


@app.command()
def create(
    inventory: Where = _DEFAULT,
    install: Annotated[
        bool, typer.Option("--install", help="Install what this machine lacks with apt-get, without asking.")
    ] = False,
) -> None:
    """Make the lab, or what is missing of it."""
    from k3ctl.lab import create as work
    from k3ctl.lab import outer
    from k3ctl.lab.definition import load

    began = time.monotonic()
    outer.require_root()
    lab = load(inventory)
    changed = work.create(lab, install=install, say=_say)
    took = time.monotonic() - began
    _say(f"lab `{lab.name}` is up: {'made' if changed else 'no change'} ({took:.1f} s)")


@app.command()
def status(inventory: Where = _DEFAULT, output: Output = "table") -> None:
    """Show the machines. Exit status 1 when one of them is not up."""
    from k3ctl.lab import outer, record
    from k3ctl.lab import status as work

    outer.require_root()
    found = work.look(record.existing(inventory))
    typer.echo(json.dumps(found.json(), indent=1) if output == "json" else _table(found))
    if not found.healthy:
        raise typer.Exit(ExitCode.FAILED)


def _table(found: object) -> str:
    from k3ctl import units
    from k3ctl.lab.status import LabStatus

    assert isinstance(found, LabStatus)  # noqa: S101 - keeps the heavy import out of the signature
    rows = [("MACHINE", "UP", "SSH", "STATE", "MANAGEMENT", "FABRIC", "UPTIME", "MEMORY", "FAULTS")]
    for m in found.machines:
        rows.append(
            (
                m.name,
                "yes" if m.up else "no",
                "yes" if m.ssh else "no",
                m.state,
                m.management,
                m.fabric,
                "-" if m.uptime_s is None else units.duration(m.uptime_s),
                "-" if m.memory_bytes is None else units.size(m.memory_bytes),
                "; ".join(m.faults) or "none",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, f"hub: {found.hub or 'not running'}"])


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def shell(
    context: typer.Context,
    node: Annotated[str, typer.Argument(help="Machine to log in to.")],
    inventory: WhereOption = _DEFAULT,
    user: Annotated[str, typer.Option("--user", "-u", help="Log in as this user; the inventory's by default.")] = "",
) -> None:
    """Log in to a machine, or run a command on it: `k3ctl lab shell k3lab1 -- uptime`."""
    from k3ctl.lab import access, record

    lab = record.existing(inventory)
    argv = access.ssh(lab, lab.host(node), context.args, user=user)
    if sys.stdin.isatty() and not context.args:
        argv.insert(1, "-t")
    os.execvp(argv[0], argv)  # noqa: S606 - the shell is ssh's


@app.command()
def fault(
    node: Annotated[str, typer.Argument(help="Machine to break.", show_default=False)] = "",
    name: Annotated[str, typer.Argument(help="Fault; see --list.", show_default=False)] = "",
    inventory: WhereOption = _DEFAULT,
    given: Annotated[
        list[str], typer.Option("--set", "-s", metavar="OPTION=VALUE", help="Option of the fault; may be repeated.")
    ] = [],  # noqa: B006 - typer copies it
    clear: Annotated[bool, typer.Option("--clear", help="Take the fault back.")] = False,
    show: Annotated[bool, typer.Option("--list", help="List the faults and their options.")] = False,
) -> None:
    """Break something on a machine, or take it back: `k3ctl lab fault k3lab2 mtu -s mtu=1400`."""
    from k3ctl.lab import faulting, outer, record

    if show:
        for one in faulting.catalogue().values():
            defaults = " ".join(f"{k}={v or '...'}" for k, v in one.options.items())
            typer.echo(f"{one.name:22}{one.title}" + (f"  [{defaults}]" if defaults else ""))
        return
    if not node or not name:
        raise ConfigError(
            Problem(what="name a machine and a fault", fix="`k3ctl lab fault k3lab2 link-down`, or `--list`")
        )
    outer.require_root()
    lab = record.existing(inventory)
    host, options = lab.host(node), _pairs(given)
    if not clear:
        made = faulting.inject(lab, host, name, options, _say)
        _say(f"{node}: {name} " + ("is active" if made else "was active already: no change"))
        return
    cleared = faulting.clear(lab, host, name, options, _say)
    _say(f"cleared: {', '.join(cleared)}" if cleared else f"{node}: no {name} was active: no change")


def _pairs(given: list[str]) -> dict[str, str]:
    wrong = [text for text in given if "=" not in text]
    if wrong:
        raise ConfigError(*(Problem(what="an option is NAME=VALUE", found=text, key="--set") for text in wrong))
    return dict(text.split("=", 1) for text in given)


@app.command()
def destroy(
    inventory: Where = _DEFAULT,
    purge: Annotated[
        bool, typer.Option("--purge-cache", help="Also remove cached base systems and serving environments.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove all that `create` made, and nothing else. The caches stay unless asked."""
    from k3ctl.lab import destroy as work
    from k3ctl.lab import outer

    outer.require_root()
    began = time.monotonic()
    lab = work.target(inventory)
    removed = work.destroy(lab, _say)
    took = time.monotonic() - began
    _say(f"lab `{lab.name}`: {'removed' if removed else 'no change, there was none'} ({took:.1f} s)")
    if purge and (yes or typer.confirm("Remove the cached base systems and serving environments?", err=True)):
        _say("caches removed" if work.purge_cache() else "no caches")


def problem_text(problem: Problem) -> str:
    """One problem as lines of text."""
    lines = [problem.what]
    place = ":".join(part for part in (problem.file, str(problem.line or ""), problem.key) if part)
    for name, value in (
        ("at", place),
        ("node", problem.node),
        ("found", problem.found),
        ("expected", problem.expected),
        ("fix", problem.fix),
    ):
        if value:
            lines.append(f"  {name}: {value}")
    lines += [f"    {line}" for line in problem.evidence.splitlines()]
    return "\n".join(lines)


def main(run: Callable[[], object] = app) -> int:
    """Run as a program of its own: errors become text and an exit code."""
    try:
        run()
    except K3ctlError as error:
        for problem in error.problems:
            typer.echo(f"error: {problem_text(problem)}", err=True)
        return int(error.code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
