"""Refusals of a layout, each with its arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from k3ctl.errors import Problem
from k3ctl.memory.architecture import Layout as Sizes
from k3ctl.memory.forecast import Fit
from k3ctl.planner.shape import Shape, by_rule, fit
from k3ctl.planner.subject import Subject
from k3ctl.profiles.types import Amount, Layout, MemorySettings, Verdict

# What is assumed of a place that no layout describes, so that its arithmetic can be shown.
_ASSUMED = MemorySettings(
    utilization=0.95,
    kv="fp8",
    prefix_caching=False,
    workspace_bytes=Amount(value=4 * 2**30, source="as other layouts have", status="inferred"),
)


def undocumented_place(subject: Subject) -> Problem:
    """No layout for this platform, model and number of nodes."""
    engine, model, platform = subject.engine, subject.model, subject.platform
    here = [lay for lay in engine.layouts if model.name in lay.models and platform.name in lay.platforms]
    count = f"{subject.nodes} node{'' if subject.nodes == 1 else 's'}"
    counts = sorted({nodes for layout in here for nodes in layout.nodes})
    if here:
        what = f"{engine.name} has no layout for {model.name} on {count} of {platform.name}"
        expected = f"{_listed(counts)} nodes"
        fix = "use that many nodes, or several replicas (strategy.replicas)"
    else:
        what = f"{engine.name} has no layout for {model.name} on {platform.name}"
        places = {f"{', '.join(lay.models)} on {', '.join(lay.platforms)}" for lay in engine.layouts}
        expected = "; ".join(sorted(places))
        fix = "choose another engine, or add a layout with its source to the engine's profile"
    said = arithmetic(subject, here[0].memory if here else None)
    return Problem(
        what=f"{what}; {said}" if said else what,
        file=subject.file,
        key="platform" if here else "engine",
        found=f"{count}, {subject.world} GPUs",
        expected=expected,
        fix=fix,
    )


def arithmetic(subject: Subject, memory: MemorySettings | None) -> str:
    """How near the smallest plain layout comes on these GPUs; empty when the model's sizes are not known."""
    if subject.model.architecture is None:
        return ""
    like = _bare(memory or _ASSUMED)
    found = [(shape, fit(subject, shape)) for shape in by_rule(subject, like)]
    judged = [(shape, result) for shape, result in found if result is not None]
    if not judged:
        return ""
    shape, result = min(judged, key=lambda pair: (pair[1].missing_bytes, pair[1].memory.weights_bytes))
    if result.fits:
        return f"by arithmetic {shape.text} would fit, but the engine's profile has no such layout ({result.why})"
    return f"nothing fits: with the smallest plain layout, {shape.text}, {result.why}"


def undocumented_sizes(subject: Subject, shapes: Sequence[Shape]) -> Problem:
    """Layouts are there, but none is what cluster.yml asks for."""
    spec = subject.cluster.spec.strategy
    given = {
        key: getattr(spec, key)
        for key in (
            "layout",
            "tensor_parallel",
            "pipeline_parallel",
            "data_parallel",
            "decode_context_parallel",
            "expert_parallel",
            "draft",
        )
        if getattr(spec, key) is not None
    }
    what = f"no documented layout of {subject.engine.name} on {subject.nodes} x {subject.platform.name} is that"
    said = _asked_arithmetic(subject, shapes[0])
    return Problem(
        what=f"{what}; {said}" if said else what,
        file=subject.file,
        key="strategy." + next(iter(given)),
        found=", ".join(f"{key} {str(value).lower()}" for key, value in given.items()),
        expected="; ".join(f"{shape.layout.name} ({shape.text})" for shape in shapes),
        fix="ask for one of these by `strategy.layout`, or add a layout with its source to the engine's profile",
    )


def heads(subject: Subject, tensor: int, key: str) -> Problem:
    """A tensor parallel size that does not divide the attention heads."""
    divisors = (n for n in range(1, subject.heads + 1) if subject.heads % n == 0)
    return Problem(
        what=f"{subject.model.name} has {subject.heads} attention heads, which {tensor} ranks do not divide",
        file=subject.file,
        key=key,
        found=str(tensor),
        expected=", ".join(map(str, divisors)),
        fix="use a size that divides the heads",
    )


def none_fits(subject: Subject, judged: Sequence[tuple[Shape, Fit | None]]) -> Problem:
    """Documented layouts that are too large for the GPUs with these settings."""
    said = "; ".join(f"{shape.text}: {result.why}" for shape, result in judged if result)
    return Problem(
        what=f"{subject.model.name} does not fit {subject.world} x {subject.gpu.title}",
        file=subject.file,
        key="strategy",
        found=said,
        fix="more nodes, a lower max_model_len or max_num_seqs, or another layout",
    )


def _asked_arithmetic(subject: Subject, like: Shape) -> str:
    """The arithmetic of the first plain shape that has the sizes asked for."""
    spec = subject.cluster.spec.strategy
    if subject.model.architecture is None:
        return ""
    for shape in by_rule(subject, like):
        wanted = (spec.tensor_parallel, spec.pipeline_parallel, spec.data_parallel, spec.expert_parallel)
        sizes = (shape.sizes.tp, shape.sizes.pp, shape.sizes.dp, shape.sizes.ep)
        if all(asked is None or asked == there for asked, there in zip(wanted, sizes, strict=True)):
            result = fit(subject, shape)
            if result:
                return f"{shape.text} {'would fit' if result.fits else 'does not fit'} by arithmetic: {result.why}"
    return ""


def _bare(memory: MemorySettings) -> Shape:
    """A carrier of settings for shapes by rule."""
    layout = Layout(
        name="by-rule",
        platforms=("any",),
        models=("any",),
        nodes=(1,),
        strategy="tp",
        tp=1,
        preference=1,
        why="",
        max_model_len=8192,
        max_num_seqs=8,
        memory=memory,
        verdict=Verdict(status="inferred", source="arithmetic"),
    )
    return Shape(
        layout, Sizes(1), documented=False, max_model_len=8192, max_num_seqs=8, max_batched=4096, memory=memory
    )


def _listed(counts: Sequence[int]) -> str:
    return " or ".join(map(str, counts))
