"""GPUs against the plan."""

from __future__ import annotations

from k3ctl.preflight.check import Case, Check, Verdict, fail, known, not_needed, ok, value


def _count(case: Case) -> Verdict:
    wanted = case.plan.expected.gpus
    if wanted == 0:
        return not_needed("the plan uses no GPU")
    found = value(case.facts.gpus, "gpus")
    usable = [gpu for gpu in found.gpus if gpu.error is None]
    broken = [f"GPU {gpu.index}: {gpu.error}" for gpu in found.gpus if gpu.error is not None]
    known(found.count if found.count == len(found.gpus) else None, "how many GPUs there are (its list is incomplete)")
    said, expected = f"{len(usable)} usable of {found.count}", f"{wanted}"
    if broken:
        fix = "see `dmesg` for Xid 79 (fallen off the bus) or 119; reset the GPU, reboot, or drain the node for repair"
        return fail(f"{said} ({'; '.join(broken)})", expected, fix)
    if len(usable) < wanted:
        return fail(said, expected, "see `lspci -d 10de:` and `dmesg`: power-cycle the node, or drain it for repair")
    if len(usable) > wanted:
        return fail(said, expected, "choose the platform in cluster.yml that has this many GPUs a node")
    return ok(said, expected)


def _model(case: Case) -> Verdict:
    wanted = case.plan.expected.gpu_name
    if case.plan.expected.gpus == 0 or not wanted:
        return not_needed("the plan names no GPU model")
    found = value(case.facts.gpus, "gpus")
    names = [known(gpu.name, f"the name of GPU {gpu.index}") for gpu in found.gpus]
    wrong = [f"GPU {gpu.index}: {gpu.name}" for gpu in found.gpus if gpu.name != wanted]
    expected = f"{case.plan.expected.gpus} x {wanted}"
    if wrong or not names:
        return fail("; ".join(wrong) or "no GPU", expected, "choose the platform in cluster.yml that has these GPUs")
    return ok(f"{len(names)} x {wanted}", expected)


CHECKS = (
    Check(
        name="gpu.count",
        title="all GPUs are there and usable",
        scope="node",
        why="with one GPU less the launch fails at the end of the load, or runs ranks on the wrong devices",
        judge=_count,
        reads=("gpus",),
    ),
    Check(
        name="gpu.model",
        title="the GPUs are those of the platform",
        scope="node",
        why="flags, memory and images are chosen for this model; mixed models fail in the first collective",
        judge=_model,
        needs=("gpu.count",),
        reads=("gpus",),
    ),
)
