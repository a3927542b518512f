"""The systemd unit of one node, as text."""

from __future__ import annotations

from k3ctl.launch import container
from k3ctl.plan import NodePlan, Plan

STOP_TIMEOUT_S = 90
CRASH_LOOP_STATUS = 78  # exit status of the gang when it gives up; k3ctl/node/launchfile.py says the same


def unit_name(cluster: str) -> str:
    """The unit that serves a cluster's rank on a node."""
    return f"k3ctl-{cluster}.service"


def unit_text(plan: Plan, node: NodePlan, python: str, agent: str, launch_file: str) -> str:
    """The unit file. It survives SSH, the controller and a reboot; `agent` is the node agent's file, `python` runs it.

    KillMode=mixed: only the gang gets SIGTERM and ends torchrun, rank and engine in that order; what is left in the
    cgroup when it is gone gets SIGKILL. Status 78 means crash loop: systemd leaves it down.
    """
    inside = container.unit_lines(plan) if container.used(plan) else {}
    lines = [
        f"# Written by k3ctl for cluster {plan.cluster}, rank {node.rank} of {len(plan.nodes)}. Changes here are lost.",
        "[Unit]",
        f"Description=k3ctl {plan.cluster}: {plan.engine} {plan.engine_version}, {plan.model.served_name}, "
        f"rank {node.rank} of {len(plan.nodes)}",
        "Wants=network-online.target",
        "After=network-online.target",
        *inside.get("Unit", ()),
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=exec",
        *inside.get("Service", ()),
        f"ExecStart={python} {agent} gang --launch {launch_file}",
        "Restart=always",
        "RestartSec=2",
        f"RestartPreventExitStatus={CRASH_LOOP_STATUS}",
        "KillMode=mixed",
        f"TimeoutStopSec={STOP_TIMEOUT_S}",
        "TasksMax=infinity",
        # An out-of-memory kill of one process is judged and recorded by the rank, not by systemd.
        "OOMPolicy=continue",
        "UMask=0022",
        "Environment=PYTHONUNBUFFERED=1",
    ]
    if plan.expected.memlock:
        # RDMA pins memory. Left out where the host may not raise its limits.
        lines += ["LimitMEMLOCK=infinity", "LimitNOFILE=1048576"]
    lines += ["", "[Install]", "WantedBy=multi-user.target", ""]
    return "\n".join(lines)
