"""Dependencies point one way (design.md section 2). A walk over the real imports enforces it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "k3ctl"

# layer -> what it may import besides itself and the ground layer
GROUND = {"errors", "units", "secret", "fanout", "events", "protocols", "stop", "nearest"}
DATA = {
    "inventory",
    "cluster",
    "cluster_text",
    "schemas",
    "reference",
    "plan",
    "planner",
    "memory",
    "yaml_source",
    "profiles",
    "facts",
}
WORK = {"preflight", "staging", "provision", "launch", "watch"}
EDGES = {"edge", "lab"}
TOP = {"cli", "commands", "__main__"}
OUTSIDE = {
    "socket",
    "subprocess",
    "paramiko",
    "fabric",
    "ansible",
    "ansible_runner",
    "httpx",
    "huggingface_hub",
    "urllib",
}


def layer_of(path: Path) -> str:
    """The first part below k3ctl/: a folder's or a module's name."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def allowed(layer: str) -> set[str]:
    """Layers that a layer may import."""
    core = GROUND | DATA
    rules = {
        **dict.fromkeys(TOP, core | WORK | EDGES | TOP | {"phases", "view", "node"}),
        **dict.fromkeys(EDGES, core | WORK | EDGES | {"phases", "node"}),
        **dict.fromkeys(DATA, core),
        **dict.fromkeys(GROUND, GROUND),
        **{layer: core | {layer} for layer in WORK},
        "view": core | WORK | {"phases", "view"},
        "phases": core | WORK | {"phases"},
        "node": {"node"},
    }
    return rules.get(layer, set())


def imports(path: Path) -> set[tuple[str, int]]:
    """Absolute names imported by a file, anywhere in it, with their lines."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {(alias.name, node.lineno) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {(f"{node.module}.{alias.name}", node.lineno) for alias in node.names}
    return names


FILES = sorted(p for p in PACKAGE.rglob("*.py") if "_content" not in p.parts and p != PACKAGE / "__init__.py")


def test_there_is_something_to_walk() -> None:
    assert len(FILES) > 30


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    layer = layer_of(path)
    wrong = []
    for name, line in imports(path):
        parts = name.split(".")
        if parts[0] == "k3ctl" and len(parts) > 1 and parts[1] != "__version__":
            if parts[1] not in allowed(layer):
                wrong.append(f"{path.name}:{line} {layer} imports {name}")
        elif parts[0] in OUTSIDE and layer not in EDGES | {"node"}:
            wrong.append(f"{path.name}:{line} {layer} does input/output through {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("layer", ["phases", "preflight", "staging", "launch", "watch", "planner", "view"])
def test_core_may_not_reach_the_edges(layer: str) -> None:
    assert not allowed(layer) & (EDGES | {"node", "cli"})
