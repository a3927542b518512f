"""The command line: flags -> options -> commands; errors -> text and exit code.

Commands are imported when they are called, so that `k3ctl --help` and `plan` start fast.
"""

from __future__ import annotations

import sys
import traceback
from typing import Annotated, Literal

import typer

from k3ctl import __version__
from k3ctl.commands.output import Output
from k3ctl.errors import ExitCode, InternalError, K3ctlError, Problem
from k3ctl.phases.base import Options

app = typer.Typer(
    name="k3ctl",
    help="From 1 to 4 bare GPU servers to a served, proven Kimi-K3 endpoint.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Inventory = Annotated[str, typer.Argument(help="inventory folder, such as inventories/lab", show_default=False)]
Form = Annotated[Literal["table", "json"], typer.Option("-o", "--output", help="how data is printed on stdout")]
NoColor = Annotated[bool, typer.Option("--no-color", help="no colours (also: NO_COLOR)")]
Limit = Annotated[str, typer.Option("--limit", metavar="NODE,...", help="only these nodes")]
Only = Annotated[
    str, typer.Option("--only", metavar="PHASE,...", help="only these phases (validate and connect always run)")
]
From = Annotated[str, typer.Option("--from", metavar="PHASE", help="start at this phase")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", "-n", help="look at everything, change nothing, say what would change")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="ask nothing")]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", help="longest wait for readiness; 0 = the plan's")
]


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _options(
    inventory: str,
    limit: str = "",
    only: str = "",
    start: str = "",
    *,
    dry: bool = False,
    yes: bool = False,
    timeout: float = 0.0,
) -> Options:
    return Options(inventory, _names(limit), _names(only), start, dry_run=dry, yes=yes, timeout_s=timeout)


def _version(value: bool) -> None:
    if value:
        sys.stdout.write(f"k3ctl {__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Flags that stand before the command."""


@app.command()
def up(
    inventory: Inventory,
    limit: Limit = "",
    only: Only = "",
    start: From = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    timeout: Timeout = 0.0,
    form: Form = "table",
    no_color: NoColor = False,
) -> None:
    """Take the servers to a served, proven endpoint. Safe to run again, to interrupt, to lose the laptop."""
    from k3ctl.commands.up import up as run

    raise typer.Exit(
        run(
            _options(inventory, limit, only, start, dry=dry_run, yes=yes, timeout=timeout),
            Output(form, color=not no_color),
        )
    )


@app.command()
def init(
    name: Annotated[str, typer.Argument(help="name of the cluster and of its inventory folder", show_default=False)],
    platform: Annotated[str, typer.Option("--platform", metavar="NAME", help="kind of server, such as h200")] = "",
    nodes: Annotated[int, typer.Option("--nodes", min=0, help="number of servers; 0 = as many as --host")] = 0,
    host: Annotated[
        list[str] | None, typer.Option("--host", metavar="USER@ADDRESS[:PORT]", help="a server; repeat, head first")
    ] = None,
    fabric: Annotated[
        list[str] | None, typer.Option("--fabric", metavar="ADDRESS[/LENGTH]", help="its fabric address; repeat")
    ] = None,
    engine: Annotated[str, typer.Option("--engine", help="serving engine; empty = one that knows the platform")] = "",
    model: Annotated[str, typer.Option("--model", help="model profile")] = "kimi-k3",
    directory: Annotated[str, typer.Option("--dir", help="where the folder is made")] = "inventories",
    form: Form = "table",
    no_color: NoColor = False,
) -> None:
    """Write a new inventory from what the flags say. Asks nothing, changes no existing folder."""
    from k3ctl.commands.init import InitOptions
    from k3ctl.commands.init import init as run

    options = InitOptions(name, platform, nodes, tuple(host or ()), tuple(fabric or ()), engine, model, directory)
    raise typer.Exit(run(options, Output(form, color=not no_color)))


@app.command()
def validate(inventory: Inventory, form: Form = "table", no_color: NoColor = False) -> None:
    """Check the inventory and cluster.yml: every problem at once. Touches no host."""
    from k3ctl.commands.validate import validate as run

    raise typer.Exit(run(inventory, Output(form, color=not no_color)))


@app.command()
def plan(
    inventory: Inventory,
    engine: Annotated[str, typer.Option("--engine", metavar="NAME", help="another engine than cluster.yml's")] = "",
    engine_version: Annotated[str, typer.Option("--engine-version", metavar="VERSION", help="another version")] = "",
    explain: Annotated[bool, typer.Option("--explain", help="every reason and source")] = False,
    show: Annotated[str, typer.Option("--show", metavar="'rank N'", help="one rank's unit, environment and argv")] = "",
    wan: Annotated[str, typer.Option("--wan", metavar="RATE", help="download rate of each node, such as 10Gbit")] = "",
    diff: Annotated[bool, typer.Option("--diff", help="against what was launched last: what would restart")] = False,
    form: Form = "table",
    no_color: NoColor = False,
) -> None:
    """Show what will run on every rank, whether it fits, how long it will take, and why. Touches no host."""
    from k3ctl.commands.plan import PlanOptions
    from k3ctl.commands.plan import plan as run

    options = PlanOptions(inventory, engine, engine_version, explain, show, wan, diff)
    raise typer.Exit(run(options, Output(form, color=not no_color)))


@app.command()
def trust(
    inventory: Inventory,
    yes: Yes = False,
    replace: Annotated[
        str, typer.Option("--replace", metavar="NODE,...", help="accept changed keys of these nodes")
    ] = "",
    form: Form = "table",
    no_color: NoColor = False,
) -> None:
    """Show the hosts' SSH keys and, when you confirm, remember them for this cluster."""
    from k3ctl.commands.trust import trust as run

    raise typer.Exit(run(inventory, _names(replace), Output(form, color=not no_color), yes=yes))


@app.command()
def preflight(inventory: Inventory, limit: Limit = "", form: Form = "table", no_color: NoColor = False) -> None:
    """Say whether these machines can serve the plan, and what to fix."""
    from k3ctl.commands.preflight import preflight as run

    raise typer.Exit(run(_options(inventory, limit, "preflight"), Output(form, color=not no_color)))


@app.command()
def stage(
    inventory: Inventory, limit: Limit = "", dry_run: DryRun = False, form: Form = "table", no_color: NoColor = False
) -> None:
    """Put the pinned weights onto every node, each file proven by its digest."""
    from k3ctl.commands.up import stage as run

    raise typer.Exit(run(_options(inventory, limit, "stage", dry=dry_run), Output(form, color=not no_color)))


@app.command()
def start(
    inventory: Inventory,
    dry_run: DryRun = False,
    timeout: Timeout = 0.0,
    form: Form = "table",
    no_color: NoColor = False,
) -> None:
    """Start a stopped engine on all nodes and wait until it answers."""
    from k3ctl.commands.up import start as run

    raise typer.Exit(run(_options(inventory, dry=dry_run, timeout=timeout), Output(form, color=not no_color)))


@app.command()
def stop(inventory: Inventory, dry_run: DryRun = False, form: Form = "table", no_color: NoColor = False) -> None:
    """Stop every rank on every node, and prove that each is gone."""
    from k3ctl.commands.up import stop as run

    raise typer.Exit(run(_options(inventory, dry=dry_run), Output(form, color=not no_color)))


@app.command()
def restart(inventory: Inventory, timeout: Timeout = 0.0, form: Form = "table", no_color: NoColor = False) -> None:
    """Stop every rank, then start again."""
    from k3ctl.commands.up import restart as run

    raise typer.Exit(run(_options(inventory, timeout=timeout), Output(form, color=not no_color)))


@app.command()
def status(inventory: Inventory, form: Form = "table", no_color: NoColor = False) -> None:
    """What runs where: every node and rank, what failed last, whether the endpoint answers."""
    from k3ctl.commands.status import status as run

    raise typer.Exit(run(inventory, Output(form, color=not no_color)))


@app.command()
def logs(
    inventory: Inventory,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="go on as lines come")] = False,
    tail: Annotated[int, typer.Option("--tail", min=0, help="last lines of each rank")] = 50,
    previous: Annotated[bool, typer.Option("--previous", "-p", help="the attempt before this one")] = False,
    limit: Limit = "",
    form: Form = "table",
    no_color: NoColor = False,
) -> None:
    """Engine logs of all ranks, merged, each line with its rank."""
    from k3ctl.commands.logs import LogOptions
    from k3ctl.commands.logs import logs as run

    raise typer.Exit(
        run(inventory, LogOptions(follow, tail, previous, _names(limit)), Output(form, color=not no_color))
    )


@app.command()
def smoke(inventory: Inventory, form: Form = "table", no_color: NoColor = False) -> None:
    """Ask the real endpoint: a chat, a stream, a bad request."""
    from k3ctl.commands.smoke import smoke as run

    raise typer.Exit(run(inventory, Output(form, color=not no_color)))


@app.command()
def down(
    inventory: Inventory,
    purge_weights: Annotated[
        bool, typer.Option("--purge-weights", help="also remove the staged weights (asks first)")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    form: Form = "table",
    no_color: NoColor = False,
) -> None:
    """Stop serving and remove what k3ctl installed for this cluster; weights stay unless asked."""
    from k3ctl.commands.up import down as run

    raise typer.Exit(
        run(_options(inventory, dry=dry_run, yes=yes), Output(form, color=not no_color), purge_weights=purge_weights)
    )


def _mount_lab() -> None:
    from k3ctl.lab.commands import app as lab

    app.add_typer(lab, name="lab", help="Real hosts on this machine, for a first run and for tests (Linux, root).")


def main() -> None:
    """Entry point: every error becomes text and an exit code here."""
    if "lab" in sys.argv[1:2] or any(arg in sys.argv[1:2] for arg in ("-h", "--help")) or len(sys.argv) == 1:
        _mount_lab()
    try:
        app(standalone_mode=True)
    except K3ctlError as error:
        raise SystemExit(Output().error(error)) from None
    except KeyboardInterrupt:
        raise SystemExit(int(ExitCode.INTERRUPTED)) from None
    except Exception as error:
        bug = InternalError(
            Problem(
                what=f"internal error: {type(error).__name__}: {error}",
                fix="this is a bug in k3ctl: please report it with the text below",
                evidence=traceback.format_exc(),
            )
        )
        raise SystemExit(Output().error(bug)) from error
