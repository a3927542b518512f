"""What the hosts need beside their GPUs: disk, memory, network, power, heat; and what preflight holds them against."""

from __future__ import annotations

from collections.abc import Sequence

from k3ctl.errors import ConfigError, Problem
from k3ctl.plan import Expected, ModelPlan, RuntimePlan
from k3ctl.plan.forecast import Budget
from k3ctl.planner.runtime import min_driver
from k3ctl.planner.subject import Subject, known
from k3ctl.profiles.types import RuntimeRecord
from k3ctl.units import rate, size

BTU_PER_WATT_HOUR = 3.412
_NO_FIGURE = "no published figure for this server"


def weights_bytes(subject: Subject, models: Sequence[ModelPlan]) -> int:
    """Bytes of everything that is staged on one node: model and drafts."""
    staged = {plan.repo for plan in models[1:]}
    total = known(subject.model.bytes, f"the size of {subject.model.name}", subject.file)
    return total + sum(draft.bytes.value for draft in subject.model.drafts if draft.repo in staged)


def runtime_bytes(runtime: RuntimePlan, record: RuntimeRecord | None) -> int:
    """Disk that the serving environment takes while it is installed."""
    return runtime.bytes + (record.unpacked_bytes if record and runtime.kind == "bundle" else 0)


def disk_bytes(subject: Subject, models: Sequence[ModelPlan], environment: int) -> int:
    """Disk of one node: weights, drafts, serving environment, and the reserve for caches, parts and logs."""
    return weights_bytes(subject, models) + environment + subject.platform.reserve_bytes.value


def disk_problem(
    subject: Subject, models: Sequence[ModelPlan], environment: int, there: int, where: str = ""
) -> Problem | None:
    """What is wrong with a disk of `there` bytes, of which all are free; None when everything fits."""
    needed = disk_bytes(subject, models, environment)
    if there >= needed:
        return None
    parts = (
        f"{size(weights_bytes(subject, models))} of weights and drafts, {size(environment)} of serving environment, "
        f"{size(subject.platform.reserve_bytes.value)} for caches, parts and logs"
    )
    return Problem(
        what=f"too little disk: {size(needed - there)} are missing on each node",
        file=subject.file,
        key="platform",
        found=size(there) + (f" ({where})" if where else ""),
        expected=f"{size(needed)}: {parts}",
        fix="use larger local disks, or point paths.weights at a file system that has the room",
    )


def expected(
    subject: Subject, models: Sequence[ModelPlan], runtime: RuntimePlan, record: RuntimeRecord | None
) -> Expected:
    """What preflight holds each node against."""
    platform, simulated = subject.platform, subject.platform.simulated
    return Expected(
        gpus=platform.gpus_per_node,
        gpu_name=subject.gpu.reported_names[0],
        hcas=platform.nics.count,
        min_memory_bytes=platform.memory_bytes.value,
        min_free_bytes=weights_bytes(subject, models) + platform.reserve_bytes.value,
        min_runtime_bytes=runtime_bytes(runtime, record),
        memlock=platform.memlock,
        sysfs_root=simulated.sysfs_root if simulated else "/sys",
        nvml_library_path=simulated.nvml_library_path if simulated else "",
        architecture=platform.architecture,
        min_driver=min_driver(subject),
    )


def budgets(
    subject: Subject, models: Sequence[ModelPlan], environment: int, ready_seconds: float
) -> tuple[Budget, ...]:
    """Each with the profile's number beside it. Raises ConfigError when the platform's disks are too small."""
    platform = subject.platform
    disk, read = platform.disk_bytes, platform.disk_read
    if disk and (problem := disk_problem(subject, models, environment, disk.value, disk.source)):
        raise ConfigError(problem)
    needed = disk_bytes(subject, models, environment)
    slowest = weights_bytes(subject, models) / ready_seconds
    found = [
        Budget(
            "host memory",
            "node",
            f"{size(platform.memory_bytes.value)} or more",
            "",
            "unknown",
            platform.memory_bytes.source,
        ),
        Budget(
            "disk",
            "node",
            size(needed),
            size(disk.value) if disk else "",
            "ok" if disk else "unknown",
            disk.source if disk else _NO_FIGURE,
        ),
        Budget(
            "disk read",
            "node",
            f"{rate(slowest)} or more, to load within the ready limit",
            rate(read.value) if read else "",
            "unknown" if read is None else "ok" if read.value >= slowest else "short",
            read.source if read else _NO_FIGURE,
        ),
        *_network(subject),
        *_power(subject),
    ]
    return tuple(found)


def _network(subject: Subject) -> list[Budget]:
    nics = subject.platform.nics
    has = f"{nics.count} x {nics.rate.value / 1e9:g} Gbit/s ({nics.kind})"
    if subject.nodes == 1:
        return [Budget("network between nodes", "node", "none: one node holds an engine", has, "ok", nics.rate.source)]
    needs = "one interface for each GPU that talks to another node" if nics.count else "at least one interface"
    return [Budget("network between nodes", "node", needs, has, "ok" if nics.count else "short", nics.rate.source)]


def _power(subject: Subject) -> list[Budget]:
    watts, gpu = subject.platform.power_watts, subject.gpu.power_watts
    count, nodes = subject.platform.gpus_per_node, len(subject.cluster.inventory.nodes)
    if watts is None:
        if gpu is None:
            return []
        floor = count * gpu.value
        said = f"{floor / 1000:.1f} kW for {count} GPUs alone"
        return [Budget("power", "node", said, "", "unknown", gpu.source)]
    found = []
    for scope, factor in (("node", 1), ("plan", nodes)):
        total = watts.value * factor
        said = f"{total / 1000:.1f} kW, {total * BTU_PER_WATT_HOUR:,.0f} BTU/h of heat"
        gpus = f"{count * factor} GPUs take {gpu.value * count * factor / 1000:.1f} kW of it" if gpu else ""
        found.append(Budget("power and cooling", scope, said, gpus, "unknown", watts.source))
    return found
