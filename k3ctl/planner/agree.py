"""No rank's flags or environment contradict the plan: what a flag says must be what the plan says."""

from __future__ import annotations

import re
from collections.abc import Mapping

from k3ctl.errors import ConfigError, Problem
from k3ctl.planner.arguments import Arguments
from k3ctl.planner.shape import Shape
from k3ctl.planner.subject import Subject

# flag -> the template value that it must have, where a rank gives it at all
_FLAGS: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "--tensor-parallel-size": "tp",
        "-tp": "tp",
        "--pipeline-parallel-size": "pp",
        "--data-parallel-size": "dp",
        "--data-parallel-size-local": "dp_local",
        "--data-parallel-start-rank": "dp_start",
        "--decode-context-parallel-size": "dcp",
        "--nnodes": "nnodes",
        "--node-rank": "node_rank",
        "--master-addr": "head",
        "--master-port": "master_port",
        "--data-parallel-address": "head",
        "--port": "port",
        "--max-model-len": "max_model_len",
        "--max-num-seqs": "max_num_seqs",
        "--max-num-batched-tokens": "max_batched",
        "--gpu-memory-utilization": "utilization",
        "--served-model-name": "served_name",
    },
    "sglang": {
        "--pp-size": "pp",
        "--dcp-size": "dcp",
        "--nnodes": "nnodes",
        "--node-rank": "node_rank",
        "--port": "port",
        "--context-length": "max_model_len",
        "--max-running-requests": "max_num_seqs",
        "--mem-fraction-static": "utilization",
        "--served-model-name": "served_name",
    },
    "trtllm": {"--port": "port"},
}
_VARIABLES = {"VLLM_HOST_IP": "address", "SGLANG_HOST_IP": "address"}
# flag whose presence means one of these sizes is above 1, when the layout says otherwise
_PRESENT = {
    "vllm": {
        "tp": ("--tensor-parallel-size", "-tp"),
        "pp": ("--pipeline-parallel-size",),
        "dp": ("--data-parallel-size",),
        "dcp": ("--decode-context-parallel-size", "-dcp"),
    },
    "sglang": {"tp": ("--tp-size", "--tp"), "pp": ("--pp-size",), "dcp": ("--dcp-size",)},
    "trtllm": {},
}
_KV = {"fp8": ("fp8", "fp8_e4m3"), "bf16": ("auto", "bfloat16", "bf16")}


def check(subject: Subject, shape: Shape, arguments: Arguments, values: Mapping[str, str]) -> None:
    """Raise ConfigError with every flag and variable that says something else than the plan."""
    family = subject.engine.family
    given = {item.name: item.values[0] if item.values else "" for item in arguments.items if item.name}
    problems = [
        _problem(subject, name, given[name], values.get(key, ""))
        for name, key in _FLAGS[family].items()
        if name in given and not _same(given[name], values.get(key, ""))
    ]
    problems += [
        _problem(subject, name, arguments.env[name][0], values[key])
        for name, key in _VARIABLES.items()
        if name in arguments.env and arguments.env[name][0] != values[key]
    ]
    for size, names in _PRESENT[family].items():
        wanted = getattr(shape.sizes, size)
        if wanted > 1 and given.keys().isdisjoint(names):
            problems.append(_problem(subject, names[0], "not given", str(wanted)))
    problems += _experts(subject, shape, given)
    problems += _cache(subject, shape, given)
    partition = arguments.env.get("VLLM_PP_LAYER_PARTITION", ("", ""))[0]
    wanted_partition = ",".join(map(str, shape.sizes.partition))
    if family == "vllm" and partition != wanted_partition:
        problems.append(_problem(subject, "VLLM_PP_LAYER_PARTITION", partition or "not given", wanted_partition))
    if problems:
        raise ConfigError(*problems)


def _experts(subject: Subject, shape: Shape, given: Mapping[str, str]) -> list[Problem]:
    sizes = shape.sizes
    if subject.engine.family == "vllm":
        there = "--enable-expert-parallel" in given
        if there != sizes.ep:
            return [_problem(subject, "--enable-expert-parallel", str(there).lower(), f"ep {str(sizes.ep).lower()}")]
    if subject.engine.family == "sglang":
        wanted = str(sizes.tp * sizes.dp if sizes.ep else 1)
        found = given.get("--ep-size", given.get("--ep", "1"))
        all_ranks = str(sizes.tp * sizes.dp)
        problems = [] if found == wanted else [_problem(subject, "--ep-size", found, wanted)]
        tensor = given.get("--tp-size", given.get("--tp", "1"))
        return problems if tensor == all_ranks else [*problems, _problem(subject, "--tp-size", tensor, all_ranks)]
    return []


def _cache(subject: Subject, shape: Shape, given: Mapping[str, str]) -> list[Problem]:
    """What the memory arithmetic assumes must be what the flags say."""
    memory = shape.memory
    if memory is None:
        return []
    problems = []
    kv = given.get("--kv-cache-dtype", "auto")
    if kv not in _KV[memory.kv]:
        problems.append(_problem(subject, "--kv-cache-dtype", kv, memory.kv))
    if subject.engine.family == "vllm":
        off = "--no-enable-prefix-caching" in given
        if memory.prefix_caching == off:
            expected = "--enable-prefix-caching (the default)" if off else "--no-enable-prefix-caching"
            problems.append(_problem(subject, "--no-enable-prefix-caching", str(off).lower(), expected))
    if subject.engine.family == "sglang":
        off = "--disable-radix-cache" in given
        if memory.prefix_caching == off:
            problems.append(_problem(subject, "--disable-radix-cache", str(off).lower(), str(not off).lower()))
        ratio = given.get("--mamba-full-memory-ratio", "")
        if ratio and not _same(ratio, f"{memory.state_ratio:g}"):
            problems.append(_problem(subject, "--mamba-full-memory-ratio", ratio, f"{memory.state_ratio:g}"))
    return problems


def _same(found: str, wanted: str) -> bool:
    if found == wanted:
        return True
    number = re.compile(r"-?\d+(\.\d+)?")
    return bool(number.fullmatch(found) and number.fullmatch(wanted) and float(found) == float(wanted))


def _problem(subject: Subject, name: str, found: str, wanted: str) -> Problem:
    return Problem(
        what=f"{name} contradicts the plan",
        file=f"engines/{subject.engine.name}.yml",
        key=name,
        found=found,
        expected=wanted or "no such flag",
        fix="write it as a template, or correct the layout's sizes",
    )
