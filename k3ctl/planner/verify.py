"""How far a plan is from having been run, and how far its numbers are from those that were measured."""

from __future__ import annotations

import math

from k3ctl.memory.forecast import Fit
from k3ctl.plan import RuntimePlan
from k3ctl.plan.forecast import Distance, MemoryPlan, Verification
from k3ctl.planner.shape import Shape
from k3ctl.planner.subject import Subject

ORDER = ("verified", "published", "simulated", "inferred", "unverified")


def verification(subject: Subject, shape: Shape, runtime: RuntimePlan) -> Verification:
    """The weakest verdict of GPU, platform, model, engine version and layout, and what each says."""
    verdicts = {
        f"platform {subject.platform.name}": subject.platform.verdict,
        f"model {subject.model.name}": subject.model.verdict,
        f"{subject.engine.name} {subject.version.version}": subject.version.verdict,
        f"layout {shape.layout.name}": shape.layout.verdict,
    }
    said = [
        f"{what}: {verdict.status}, {verdict.source}{f' ({verdict.note})' if verdict.note else ''}"
        for what, verdict in verdicts.items()
    ]
    status = max((verdict.status for verdict in verdicts.values()), key=ORDER.index)
    if runtime.kind == "container":
        said.append("k3ctl itself has not launched a container on GPUs yet: the texts are rendered, not run")
        status = max(status, "inferred", key=ORDER.index)
    return Verification(status, tuple(said))


def distances(subject: Subject, shape: Shape, fit: Fit | None) -> tuple[Distance, ...]:
    """Every measurement of the layout, with the plan's own number where it has one and runs as was measured."""
    memory = fit.memory if fit else None
    planned = {
        "weights_per_gpu": float(memory.weights_bytes),
        "kv_pool": float(memory.pool_bytes),
        "kv_tokens": float(memory.tokens),
    } if memory else {}  # fmt: skip
    if _changed(subject, shape):
        planned = {"weights_per_gpu": planned["weights_per_gpu"]} if planned else {}
    found = []
    for one in shape.layout.measured:
        ours = planned.get(one.what)
        if ours is not None and memory and one.max_model_len and one.what == "kv_tokens":
            ours = _tokens(shape, memory, one.max_model_len)
        found.append(Distance(one.what, one.unit, one.value, ours, one.context, one.source))
    return tuple(found)


def _tokens(shape: Shape, memory: MemoryPlan, length: int) -> float:
    """The plan's cache as the engine reports it for another model length; SGLang's pool depends on no length."""
    if not memory.blocks:
        return float(memory.tokens)
    own, other = (
        math.ceil(math.ceil(one / shape.sizes.dcp) / memory.block_tokens) for one in (shape.max_model_len, length)
    )
    per_request = memory.blocks_per_request - own + other
    return float(int(memory.blocks / per_request * length))


def _changed(subject: Subject, shape: Shape) -> bool:
    """True when cluster.yml runs the layout otherwise than it is written."""
    spec = subject.cluster.spec.strategy
    wishes = (spec.kv_cache, spec.gpu_memory_utilization, spec.max_model_len, spec.max_num_seqs)
    added = shape.draft.name if shape.draft else ""
    return any(wish is not None for wish in wishes) or added != shape.layout.draft
