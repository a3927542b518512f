"""The launch inside a container image: docker run around torchrun, and what the unit needs for it. Pure.

Not run on GPUs by k3ctl yet. torchrun is the container's program, so that all ranks live in the image and the unit's
gang talks to one process, the docker client, which hands signals on. Secrets go in by files, never as options.
"""

from __future__ import annotations

from collections.abc import Sequence

from k3ctl.plan import NodePlan, Plan

DOCKER = "/usr/bin/docker"
# The host's Python need not be in the image.
PYTHON = "python3"
# Variables that gang sets for torchrun on the host; named without a value, docker takes them from its own environment.
PASSED_ON = ("HOME", "K3CTL_CLUSTER", "PYTHONUNBUFFERED", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE")


def used(plan: Plan) -> bool:
    """True when the serving environment is a container image."""
    return plan.runtime.kind == "container"


def name(cluster: str) -> str:
    """The container of a cluster on a node."""
    return f"k3ctl-{cluster}"


def argv(plan: Plan, node: NodePlan, program: Sequence[str]) -> tuple[str, ...]:
    """docker run with `program` in the image: `program[0]` replaces the image's entry point.

    Weights are read-only. The state folder holds HOME of the engine, and so every cache that it compiles.
    """
    mounts = [f"{model.path}:{model.path}:ro" for model in plan.models]
    mounts += [f"{plan.config_dir}:{plan.config_dir}:ro", f"{plan.state_dir}:{plan.state_dir}"]
    mounts.append(f"{plan.log_dir}:{plan.log_dir}")
    return (
        DOCKER,
        "run",
        "--rm",
        "--init",
        *("--name", name(plan.cluster)),
        *("--label", f"k3ctl.rank={node.rank}"),
        *("--pull", "never"),
        *("--log-driver", "none"),
        *plan.runtime.options,
        *(word for mount in mounts for word in ("--volume", mount)),
        *(word for variable in PASSED_ON for word in ("--env", variable)),
        *("--entrypoint", program[0]),
        plan.runtime.url,
        *program[1:],
    )


def unit_lines(plan: Plan) -> dict[str, list[str]]:
    """Lines for the unit's sections. A container outlives its docker client, so it is removed before and after."""
    remove = f"{DOCKER} rm --force {name(plan.cluster)}"
    return {
        "Unit": ["Requires=docker.service", "After=docker.service"],
        "Service": [f"ExecStartPre=-{remove}", f"ExecStopPost=-{remove}"],
    }
