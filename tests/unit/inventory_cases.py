"""Cases of tests/data/inventories: what a folder holds replaces or adds to `base`; expected.yml says what must come.

expected.yml: `problems` [{file, line, key, node, what, found, expected, fix}: texts are parts of the real ones] or
`nodes` [{name, rank, address, port, user, fabric, jump, proxy_command}]; `without` [files of base left out];
`name` of the inventory folder.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import yaml

from k3ctl.cluster import Cluster
from k3ctl.errors import Problem

ROOT = Path(__file__).parents[1] / "data" / "inventories"
CASES = sorted(path.name for path in ROOT.iterdir() if path.is_dir())
VOCABULARY = {"platform": ("lab",), "engine": ("vllm-cpu",)}


def expected(case: str) -> dict[str, Any]:
    """What a case must give."""
    loaded: dict[str, Any] = yaml.safe_load((ROOT / case / "expected.yml").read_text())
    return loaded


def build(case: str, parent: Path) -> Path:
    """Put the inventory of a case together below `parent`."""
    wanted = expected(case)
    folder = parent / wanted.get("name", "cluster")
    shutil.copytree(ROOT / "base", folder)
    for name in wanted.get("without", ()):
        (folder / name).unlink()
    shutil.copytree(ROOT / case, folder, dirs_exist_ok=True)
    (folder / "expected.yml").unlink()
    return folder


def differs(problem: Problem, wanted: dict[str, Any], folder: Path) -> list[str]:
    """In which points a problem is not the wanted one."""
    file = str(folder) if wanted.get("file") == "." else str(folder / wanted.get("file", ""))
    exact = {"line": problem.line, "node": problem.node, "key": problem.key.rpartition(".")[2]}
    wrong = [f"file {problem.file}"] if problem.file != file else []
    for name in wanted.keys() - {"file"}:
        if name == "key":
            if problem.key != wanted["key"]:
                wrong.append(f"key {problem.key}")
        elif name in exact:
            if exact[name] != wanted[name]:
                wrong.append(f"{name} {exact[name]}")
        elif str(wanted[name]) not in getattr(problem, name):
            wrong.append(f"{name} {getattr(problem, name)!r}")
    return wrong


def match(problems: tuple[Problem, ...], wanted: list[dict[str, Any]], folder: Path) -> str:
    """Pair every problem with a wanted one; the text says what is left over on either side."""
    left = list(problems)
    missing = []
    for item in wanted:
        found = next((p for p in left if not differs(p, item, folder)), None)
        if found:
            left.remove(found)
        else:
            missing.append(item)
    return "\n".join([f"missing: {item}" for item in missing] + [f"unexpected: {problem}" for problem in left])


def node_facts(cluster: Cluster) -> list[dict[str, Any]]:
    """Each node in the words of expected.yml."""
    return [
        {
            "name": node.name,
            "rank": node.rank,
            "address": node.ssh.address,
            "port": node.ssh.port,
            "user": node.ssh.user,
            "fabric": node.fabric_address,
            "jump": list(node.ssh.jump),
            "proxy_command": node.ssh.proxy_command,
        }
        for node in cluster.inventory.nodes
    ]
