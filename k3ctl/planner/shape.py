"""A layout with all its sizes filled in for one subject, and its memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

from k3ctl.errors import ConfigError, Problem
from k3ctl.memory import architecture as sizes
from k3ctl.memory.forecast import FAMILIES, Fit, Setup, forecast
from k3ctl.planner.subject import Subject
from k3ctl.profiles.architecture import architecture
from k3ctl.profiles.types import Draft, Layout, MemorySettings

MAX_TENSOR_PARALLEL = 32  # powers of two that divide the vocabulary and 96 heads (vLLM issue 51124)
MAX_STAGES = 8
SGLANG_STATE_RATIO = 0.9  # what --mamba-full-memory-ratio is when nobody gives it


@dataclass(frozen=True)
class Shape:
    """Sizes and settings of one layout. `documented` ones stand in the engine's profile under the layout's name."""

    layout: Layout
    sizes: sizes.Layout
    documented: bool
    max_model_len: int
    max_num_seqs: int
    max_batched: int
    memory: MemorySettings | None
    draft: Draft | None = None
    replay: bool = False

    @property
    def text(self) -> str:
        """'TP8 x PP2', 'TP4 x DP4 + EP16', 'TP8 + DCP8 + draft inferact-dspark'."""
        s = self.sizes
        parts = [f"TP{s.tp}"]
        parts += [f"PP{s.pp}"] if s.pp > 1 else []
        parts += [f"DP{s.dp}"] if s.dp > 1 else []
        text = " x ".join(parts)
        text += f" + EP{s.tp * s.dp}" if s.ep else ""
        text += f" + DCP{s.dcp}" if s.dcp > 1 else ""
        return text + (f" + draft {self.draft.name}" if self.draft else "")


def documented(subject: Subject) -> tuple[Shape, ...]:
    """The engine's layouts for this platform, model and number of nodes, by preference."""
    found = [
        layout
        for layout in subject.engine.layouts
        if subject.platform.name in layout.platforms
        and subject.model.name in layout.models
        and subject.nodes in layout.nodes
    ]
    return tuple(of_layout(subject, layout) for layout in sorted(found, key=lambda layout: layout.preference))


def of_layout(subject: Subject, layout: Layout) -> Shape:
    """A profile's layout with cluster.yml's wishes filled in."""
    asked = subject.cluster.spec.strategy
    memory = layout.memory
    if memory is not None:
        changes = {"utilization": asked.gpu_memory_utilization, "kv": asked.kv_cache}
        memory = memory.model_copy(update={key: value for key, value in changes.items() if value is not None})
    return Shape(
        layout=layout,
        sizes=sizes.Layout(
            tp=subject.world if layout.tp == "world" else layout.tp,
            pp=layout.pp,
            dp=layout.dp,
            dcp=layout.dcp,
            ep=layout.ep,
            mega_moe=layout.mega_moe,
            partition=layout.partition,
        ),
        documented=True,
        max_model_len=asked.max_model_len or layout.max_model_len,
        max_num_seqs=asked.max_num_seqs or layout.max_num_seqs,
        max_batched=layout.max_batched,
        memory=memory,
        draft=next((draft for draft in subject.model.drafts if draft.name == layout.draft), None),
        replay=replays(subject, layout),
    )


def replays(subject: Subject, layout: Layout, *more: str) -> bool:
    """True when the layout's flags replay KDA states instead of keeping one for each drafted token."""
    named = (subject.engine.sets[name].argv for name in (*layout.sets, *more) if name in subject.engine.sets)
    flags = set(chain(layout.argv, *named))
    return not flags.isdisjoint({"--use-replayssm", "--enable-linear-replayssm-spec"})


def by_rule(subject: Subject, like: Shape) -> Iterator[Shape]:
    """Every plain way to use all GPUs: TP with stages, TP with data parallelism, each with and without EP.

    Settings are those of `like`. Only shapes whose heads and experts divide.
    """
    arch = subject.model.architecture
    experts = arch.experts if arch else 0
    power = 1
    while power <= min(subject.world, MAX_TENSOR_PARALLEL):
        tp, others = power, subject.world // power
        power *= 2
        if subject.heads % tp or subject.world % tp:
            continue
        splits = [(1, 1)] if others == 1 else [(others, 1), (1, others)]
        for pp, dp in splits:
            for ep in (False, True):
                if pp > MAX_STAGES or (ep and (tp * dp == 1 or experts % (tp * dp))):
                    continue
                made = sizes.Layout(tp=tp, pp=pp, dp=dp, ep=ep)
                yield replace(like, sizes=made, documented=False, draft=None, replay=False)


def setup_of(subject: Subject, shape: Shape) -> Setup | None:
    """What the arithmetic needs; None when the layout's profile has no memory settings."""
    memory = shape.memory
    if memory is None:
        return None
    compute = subject.gpu.compute
    nvidia = subject.gpu.vendor == "nvidia"
    family = subject.engine.family
    return Setup(
        family=family,
        gpu_bytes=subject.gpu.memory_bytes.value,
        utilization=memory.utilization,
        kv=memory.kv,
        state=memory.state,
        prefix_caching=memory.prefix_caching,
        workspace_bytes=memory.workspace_bytes.value,
        max_model_len=shape.max_model_len,
        max_num_seqs=shape.max_num_seqs,
        max_batched=shape.max_batched,
        moe_floor=memory.moe_floor,
        text_only=memory.text_only,
        flashkda=nvidia,
        flashinfer=nvidia and compute.split(".", maxsplit=1)[0] == "10",
        state_ratio=memory.state_ratio or (SGLANG_STATE_RATIO if family == "sglang" else 0.0),
        cache_strategy=memory.cache_strategy,
        draft_bytes=shape.draft.bytes.value if shape.draft else 0,
        draft_tokens=shape.draft.tokens if shape.draft else 0,
        replay=shape.replay,
    )


def fit(subject: Subject, shape: Shape) -> Fit | None:
    """The shape's memory; None when the profile knows too little to plan it."""
    setup = setup_of(subject, shape)
    if setup is None or subject.model.architecture is None or setup.family not in FAMILIES:
        return None
    try:
        return forecast(architecture(subject.model, shape.draft), shape.sizes, setup)
    except ValueError as error:
        raise ConfigError(
            Problem(
                what=f"layout {shape.layout.name} cannot be: {error}",
                file=f"engines/{subject.engine.name}.yml",
                key="partition",
                fix="correct the engine's profile",
            )
        ) from error
