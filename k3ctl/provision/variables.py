"""Role variables of the playbooks `provision` and `down`, compiled from cluster and plan."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from k3ctl.cluster import Cluster
from k3ctl.plan import Plan

ROLES = ("base", "serving_user", "provision_stamp")


def node_variables(cluster: Cluster, plan: Plan) -> dict[str, Any]:
    """Variables of the roles `base` and `serving_user`; the same on every node."""
    paths = cluster.spec.paths
    return {
        "base_hosts": [{"address": node.address, "names": [node.name]} for node in plan.nodes],
        "base_memlock_unlimited": plan.expected.memlock,
        "base_reserved_ports": sorted({port.port for port in plan.ports}),
        "serving_user_weights_dir": paths.weights,
        "serving_user_runtimes_dir": paths.runtimes,
        "serving_user_state_dir": paths.state,
        "serving_user_log_dir": paths.logs,
    }


def stamp_variables(cluster: Cluster, text: str) -> dict[str, Any]:
    """Variables of the role `provision_stamp`."""
    return {"provision_stamp_path": stamp_path(cluster), "provision_stamp_text": text}


def stamp_path(cluster: Cluster) -> str:
    """Where a node notes what was applied to it."""
    return f"{cluster.spec.paths.state}/{cluster.name}/provision.json"


def down_variables(cluster: Cluster) -> dict[str, Any]:
    """Variables of the playbook `down`: names and folders of the cluster's engine."""
    return {
        "engine_cluster": cluster.name,
        "engine_unit_name": f"k3ctl-{cluster.name}.service",
        "engine_config_dir": f"/etc/k3ctl/{cluster.name}",
        "engine_state_dir": f"{cluster.spec.paths.state}/{cluster.name}",
    }


def users_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a host's own variables that a role of the playbook reads."""
    return {key: value for key, value in variables.items() if str(key).startswith(tuple(f"{role}_" for role in ROLES))}


def work_digest(content: str, version: str, emitted: Mapping[str, Any], users: Mapping[str, Any]) -> str:
    """sha256 (hex) over all that decides what a run does on one node. `content`: digest of playbook and roles."""
    parts = {"content": content, "k3ctl": version, "variables": {**users, **emitted}}
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
