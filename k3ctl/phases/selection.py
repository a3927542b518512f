"""Which phases a run executes: --only, --from and --limit, decided before anything starts."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from k3ctl.errors import ConfigError, Problem
from k3ctl.phases.base import Options, Phase


def check_names(phases: Sequence[Phase], options: Options) -> None:
    """Raise ConfigError for a phase name in --only or --from that this command does not have."""
    names = [phase.name for phase in phases]
    problems = []
    for flag, asked in (("--only", options.only), ("--from", (options.start_from,) if options.start_from else ())):
        for name in asked:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                problems.append(
                    Problem(
                        what=f"{flag} {name}: no such phase",
                        expected=", ".join(names),
                        fix=f"did you mean {flag} {near[0]}?" if near else f"use one of the names above with {flag}",
                    )
                )
    if options.only and options.start_from:
        problems.append(Problem(what="--only and --from exclude each other", fix="give one of the two"))
    if problems:
        raise ConfigError(*problems)


def choose_nodes(names: Sequence[str], limit: Sequence[str]) -> tuple[str, ...]:
    """The nodes to work on, in rank order. Raises ConfigError for a name in --limit that the inventory lacks."""
    unknown = [name for name in limit if name not in names]
    if unknown:
        raise ConfigError(
            *(
                Problem(what=f"--limit {name}: no such node", expected=", ".join(names), fix="use inventory names")
                for name in unknown
            )
        )
    return tuple(name for name in names if not limit or name in limit)


def skipped(phases: Sequence[Phase], options: Options, *, limited: bool) -> Mapping[str, str]:
    """Phase name -> why it does not run. `limited` is true when --limit leaves nodes out."""
    reasons: dict[str, str] = {}
    started = not options.start_from
    for phase in phases:
        started = started or phase.name == options.start_from
        if phase.essential:
            continue
        if options.only and phase.name not in options.only:
            reasons[phase.name] = f"--only {','.join(options.only)}"
        elif not started:
            reasons[phase.name] = f"--from {options.start_from}"
        elif limited and phase.scope == "gang":
            reasons[phase.name] = f"needs all nodes; --limit {','.join(options.limit)}"
    return reasons
