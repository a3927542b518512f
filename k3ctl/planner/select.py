"""Which layout runs: the preferred one that fits, or the one that cluster.yml asks for, with what was given up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from k3ctl.errors import ConfigError, Problem
from k3ctl.memory.forecast import Fit
from k3ctl.plan.forecast import Alternative
from k3ctl.planner import asked, refuse
from k3ctl.planner.compare import against
from k3ctl.planner.shape import Shape, by_rule, documented, fit
from k3ctl.planner.subject import Subject


@dataclass(frozen=True)
class Choice:
    """The layout of the plan, its memory, what was rejected, and what the user should know in numbers."""

    shape: Shape
    fit: Fit | None
    alternatives: tuple[Alternative, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Judged:
    """A shape and its memory; `fit` is None when that cannot be planned."""

    shape: Shape
    fit: Fit | None

    @property
    def possible(self) -> bool:
        """True unless the arithmetic says no."""
        return self.fit is None or self.fit.fits


def choose(subject: Subject) -> Choice:
    """Raises ConfigError, with the arithmetic, when nothing fits or what is asked for cannot be."""
    shapes = documented(subject)
    asked.check(subject)
    if not shapes:
        raise ConfigError(refuse.undocumented_place(subject))
    judged = [Judged(shape, fit(subject, shape)) for shape in shapes]
    preferred = next((one for one in judged if one.possible), None)
    matching = [one for one in judged if asked.matches(subject, one.shape)]
    if not matching:
        matching = [Judged(shape, fit(subject, shape)) for shape in asked.with_draft(subject, shapes)]
    if not matching:
        raise ConfigError(refuse.undocumented_sizes(subject, shapes))
    chosen = next((one for one in matching if one.possible), None)
    if chosen is None:
        raise ConfigError(refuse.none_fits(subject, [(one.shape, one.fit) for one in matching]))
    if subject.heads % chosen.shape.sizes.tp:
        raise ConfigError(refuse.heads(subject, chosen.shape.sizes.tp, "platform"))
    chosen, warnings = _sequences(subject, chosen)
    if preferred and preferred.shape.layout.name != chosen.shape.layout.name:
        warnings.append(against(chosen.shape, chosen.fit, preferred.shape, preferred.fit))
    warnings += asked.warnings(subject, chosen.shape)
    others = _alternatives(subject, chosen, judged)
    return Choice(chosen.shape, chosen.fit, others, tuple(warnings))


def _sequences(subject: Subject, chosen: Judged) -> tuple[Judged, list[str]]:
    """vLLM does not start when --max-num-seqs is above the number of blocks: the default is lowered, a wish is not."""
    shape, memory = chosen.shape, chosen.fit.memory if chosen.fit else None
    if memory is None or not memory.blocks or shape.max_num_seqs <= memory.blocks:
        return chosen, []
    if subject.cluster.spec.strategy.max_num_seqs:
        raise ConfigError(
            Problem(
                what=f"{shape.text} has {memory.blocks} cache blocks: with more sequences the engine does not start",
                file=subject.file,
                key="strategy.max_num_seqs",
                found=str(shape.max_num_seqs),
                expected=f"1 to {memory.blocks}",
                fix="lower it, or choose a layout with a larger cache",
            )
        )
    lower = replace(shape, max_num_seqs=memory.blocks)
    said = f"max_num_seqs is lowered from {shape.max_num_seqs} to {memory.blocks}, the number of cache blocks"
    return Judged(lower, fit(subject, lower)), [said]


def _alternatives(subject: Subject, chosen: Judged, judged: Sequence[Judged]) -> tuple[Alternative, ...]:
    """The other documented layouts, then what else the rules allow."""
    found = [
        Alternative(
            layout=other.shape.text,
            name=other.shape.layout.name,
            documented=True,
            fits=None if other.fit is None else other.fit.fits,
            why=_why_not(chosen, other),
        )
        for other in judged
        if other.shape.layout.name != chosen.shape.layout.name
    ]
    if subject.model.architecture is None:
        return tuple(found)
    taken = {_key(one.shape) for one in judged}
    for shape in by_rule(subject, chosen.shape):
        if _key(shape) not in taken:
            result = fit(subject, shape)
            if result is not None:
                why = f"not in the engine's profile; {result.why}" if result.fits else result.why
                found.append(Alternative(shape.text, "", documented=False, fits=result.fits, why=why))
    return tuple(found)


def _why_not(chosen: Judged, other: Judged) -> str:
    if other.fit and not other.fit.fits:
        return other.fit.why
    return f"{other.shape.layout.why}; {against(other.shape, other.fit, chosen.shape, chosen.fit)}"


def _key(shape: Shape) -> tuple[int, int, int, bool]:
    return (shape.sizes.tp, shape.sizes.pp, shape.sizes.dp, shape.sizes.ep)
