"""What cluster.yml asks of the layout: impossible wishes are refused, the rest selects or changes a layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from k3ctl.errors import ConfigError, Problem
from k3ctl.nearest import nearest
from k3ctl.planner import refuse
from k3ctl.planner.shape import Shape, replays
from k3ctl.planner.subject import Subject
from k3ctl.planner.versions import at_least
from k3ctl.profiles.types import Unknown

NO_DRAFT = "none"
PP_WITH_DRAFT = "0.33"  # the first vLLM whose code no longer refuses it


def check(subject: Subject) -> None:
    """Raise ConfigError with every wish that no layout could fulfil."""
    problems = [*_sizes(subject), *_names(subject), *_length(subject)]
    if problems:
        raise ConfigError(*problems)


def matches(subject: Subject, shape: Shape) -> bool:
    """True when the shape is what cluster.yml asks for, or cluster.yml leaves it open."""
    return _sizes_match(subject, shape) and _draft_matches(subject, shape)


def with_draft(subject: Subject, shapes: Sequence[Shape]) -> list[Shape]:
    """Layouts without speculation that the asked draft can be added to, by the engine's set `draft-<name>`."""
    name = subject.cluster.spec.strategy.draft
    if not name or name == NO_DRAFT or f"draft-{name}" not in subject.engine.sets:
        return []
    draft = next(draft for draft in subject.model.drafts if draft.name == name)
    plain = [shape for shape in shapes if shape.draft is None and _sizes_match(subject, shape)]
    allowed = [shape for shape in plain if shape.sizes.pp == 1 or _stages_may_draft(subject)]
    if plain and not allowed:
        raise ConfigError(
            Problem(
                what=f"{subject.engine.name} {subject.version.version} cannot speculate with pipeline stages",
                file=subject.file,
                key="strategy.draft",
                found=f"{name} with {plain[0].text}",
                expected=f"{NO_DRAFT}, or a layout without stages",
                fix="leave the draft out, or ask for pipeline_parallel: 1",
            )
        )
    return [replace(shape, draft=draft, replay=replays(subject, shape.layout, f"draft-{name}")) for shape in allowed]


def warnings(subject: Subject, shape: Shape) -> list[str]:
    """What the wishes cost or risk, in numbers."""
    found = []
    spec, layout = subject.cluster.spec.strategy, shape.layout
    if shape.draft and shape.sizes.pp > 1:
        found.append(
            f"{shape.text}: speculation over pipeline stages is allowed by {subject.engine.name} {PP_WITH_DRAFT} and "
            "nobody is known to have run it"
        )
    memory = layout.memory
    if memory and spec.gpu_memory_utilization and spec.gpu_memory_utilization > memory.utilization:
        more = (spec.gpu_memory_utilization - memory.utilization) * subject.gpu.memory_bytes.value / 2**30
        found.append(
            f"gpu_memory_utilization {spec.gpu_memory_utilization:g} instead of the layout's "
            f"{memory.utilization:g} takes {more:.1f} GiB from what the engine does not count"
        )
    if spec.max_model_len and spec.max_model_len > layout.max_model_len:
        found.append(f"max_model_len {spec.max_model_len} is above the layout's {layout.max_model_len}, as it was run")
    return found


def _sizes_match(subject: Subject, shape: Shape) -> bool:
    spec, sizes = subject.cluster.spec.strategy, shape.sizes
    pairs = (
        (spec.layout, shape.layout.name),
        (spec.tensor_parallel, sizes.tp),
        (spec.pipeline_parallel, sizes.pp),
        (spec.data_parallel, sizes.dp),
        (spec.decode_context_parallel, sizes.dcp),
        (spec.expert_parallel, sizes.ep),
    )
    return all(wanted is None or wanted == there for wanted, there in pairs)


def _draft_matches(subject: Subject, shape: Shape) -> bool:
    wanted = subject.cluster.spec.strategy.draft
    return wanted is None or wanted == (shape.draft.name if shape.draft else NO_DRAFT)


def _stages_may_draft(subject: Subject) -> bool:
    return subject.engine.family == "vllm" and at_least(subject.version.version, PP_WITH_DRAFT)


def _sizes(subject: Subject) -> list[Problem]:
    """Sizes that do not divide, or do not use exactly all GPUs."""
    spec, problems = subject.cluster.spec.strategy, []
    tensor = spec.tensor_parallel
    if tensor and subject.heads % tensor:
        problems.append(refuse.heads(subject, tensor, "strategy.tensor_parallel"))
    given = {
        "tensor_parallel": spec.tensor_parallel,
        "pipeline_parallel": spec.pipeline_parallel,
        "data_parallel": spec.data_parallel,
    }
    named = {name: size for name, size in given.items() if size}
    product = 1
    for size in named.values():
        product *= size
    whole = len(named) == len(given)
    if subject.world % product or (whole and product != subject.world):
        problems.append(
            Problem(
                what=f"{subject.world} GPUs cannot be divided that way",
                file=subject.file,
                key=f"strategy.{next(iter(named))}",
                found=" x ".join(f"{name} {size}" for name, size in named.items()) + f" = {product} ranks",
                expected=f"{subject.nodes} nodes x {subject.platform.gpus_per_node} GPUs = {subject.world}",
                fix="change the sizes, or leave them out",
            )
        )
    tp, dcp = spec.tensor_parallel, spec.decode_context_parallel
    if tp and dcp and tp % dcp:
        problems.append(
            Problem(
                what="decode context parallelism divides a tensor parallel group",
                file=subject.file,
                key="strategy.decode_context_parallel",
                found=f"{dcp} of {tp}",
                expected="a size that divides tensor_parallel",
            )
        )
    return problems


def _names(subject: Subject) -> list[Problem]:
    """Drafts and layouts that the profiles do not have."""
    spec, problems = subject.cluster.spec.strategy, []
    drafts = [draft.name for draft in subject.model.drafts if subject.engine.family in draft.families]
    layouts = sorted({layout.name for layout in subject.engine.layouts})
    for key, wanted, there in (("draft", spec.draft, [NO_DRAFT, *drafts]), ("layout", spec.layout, layouts)):
        if wanted and wanted not in there:
            near = nearest(wanted, there)
            problems.append(
                Problem(
                    what=f"{subject.engine.name} has no {key} of that name for {subject.model.name}",
                    file=subject.file,
                    key=f"strategy.{key}",
                    found=wanted,
                    expected=", ".join(there),
                    fix=f"did you mean {near}?" if near else "",
                )
            )
    return problems


def _length(subject: Subject) -> list[Problem]:
    wanted, limit = subject.cluster.spec.strategy.max_model_len, subject.model.max_model_len
    if not wanted or isinstance(limit, Unknown) or wanted <= limit.value:
        return []
    return [
        Problem(
            what=f"{subject.model.name} was made for at most {limit.value} tokens",
            file=subject.file,
            key="strategy.max_model_len",
            found=str(wanted),
            expected=f"16 to {limit.value}",
        )
    ]
