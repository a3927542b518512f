"""The torchrun launcher: its argv and environment on each node. Measured with torch 2.13, see the comments."""

from __future__ import annotations

from k3ctl.plan import NodePlan, Plan

# The agents restart the ranks as often as it takes: k3ctl's own crash limit ends it, over restarts of the unit too.
MAX_RESTARTS = 1_000_000
# A node may be away for a whole reboot with memory training; the others wait for it.
JOIN_TIMEOUT_S = 86_400
# How long a worker's agent looks for the head's store before it ends and systemd starts it again.
READ_TIMEOUT_S = 60
# A dead agent is taken out of the rendezvous after interval x attempts = 18 s; then a new one can take its place.
KEEP_ALIVE_S = 3
KEEP_ALIVE_ATTEMPTS = 6
SHUTDOWN_TIMEOUT_S = 45

# Without it a surviving agent does not publish the master address of a later round, and an agent that was killed and
# started anew waits for it forever (torch 2.13, DynamicRendezvousHandler.next_rendezvous). With it every round also has
# its own MASTER_PORT, which names the round on all nodes.
ENVIRONMENT = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

# What torchrun sets for its children and the engine must not see.
CHILD_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_NAME",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
)
CHILD_PREFIXES = ("TORCHELASTIC_",)


def host_port(address: str, port: int) -> str:
    """`address:port`, with brackets around IPv6."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def argv(plan: Plan, node: NodePlan, rendezvous_id: str, log_dir: str) -> tuple[str, ...]:
    """torchrun's command line on one node, up to `--no-python` and the shim, which the node adds.

    `is_host` is said outright: the head may not recognise itself by its address, and then all sides time out.
    """
    conf = {
        "is_host": "true" if node.rank == plan.head.rank else "false",
        "join_timeout": JOIN_TIMEOUT_S,
        "read_timeout": READ_TIMEOUT_S,
        "keep_alive_interval": KEEP_ALIVE_S,
        "keep_alive_max_attempt": KEEP_ALIVE_ATTEMPTS,
    }
    return (
        f"{plan.runtime.bin}/torchrun",
        *("--nnodes", str(len(plan.nodes))),
        *("--nproc-per-node", "1"),
        *("--rdzv-backend", "c10d"),
        *("--rdzv-endpoint", host_port(plan.head.address, plan.rendezvous_port)),
        *("--rdzv-id", rendezvous_id),
        *("--rdzv-conf", ",".join(f"{key}={value}" for key, value in conf.items())),
        *("--local-addr", node.address),
        *("--max-restarts", str(MAX_RESTARTS)),
        *("--monitor-interval", "1"),
        *("--shutdown-timeout", str(SHUTDOWN_TIMEOUT_S)),
        *("--log-dir", log_dir),
    )
