"""What the shipped playbooks and roles consist of: their files, a digest, the number of tasks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

PLAYBOOKS = ("provision", "serve", "down")
_SECTIONS = ("pre_tasks", "tasks", "post_tasks")
_BLOCKS = ("block", "rescue", "always")
_IMPORTS = ("ansible.builtin.import_tasks", "ansible.builtin.import_role")


def playbook_file(root: Path, playbook: str) -> Path:
    """The file of a playbook by name."""
    return root / "playbooks" / f"{playbook}.yml"


def roles_of(root: Path, playbook: str) -> tuple[str, ...]:
    """Names of the roles that a playbook names, in order."""
    names: list[str] = []
    for play in yaml.safe_load(playbook_file(root, playbook).read_text()):
        names += [role["role"] if isinstance(role, dict) else role for role in play.get("roles", ())]
        for section in _SECTIONS:
            names += [
                task["ansible.builtin.import_role"]["name"]
                for task in play.get(section, ())
                if "ansible.builtin.import_role" in task
            ]
    return tuple(dict.fromkeys(names))


def content_digest(root: Path, playbook: str) -> str:
    """sha256 over names and bytes of the playbook and of every file of its roles."""
    total = hashlib.sha256()
    files = [playbook_file(root, playbook)]
    for role in roles_of(root, playbook):
        files += sorted(p for p in (root / "roles" / role).rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    for file in files:
        total.update(f"{file.relative_to(root)}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def task_count(root: Path, playbook: str) -> int:
    """How many results each node gives when all goes well: fact gathering, argument validation and every task.

    Exact as long as roles import and do not include; handlers are not in it.
    """
    count = 0
    for play in yaml.safe_load(playbook_file(root, playbook).read_text()):
        count += 1 if play.get("gather_facts", True) else 0
        for role in play.get("roles", ()):
            count += _role_tasks(root, role["role"] if isinstance(role, dict) else role, "main")
        for section in _SECTIONS:
            count += _count(root, play.get(section, ()), None)
    return count


def _role_tasks(root: Path, role: str, entry: str) -> int:
    folder = root / "roles" / role
    specs = yaml.safe_load((folder / "meta" / "argument_specs.yml").read_text())["argument_specs"]
    tasks = yaml.safe_load((folder / "tasks" / f"{entry}.yml").read_text())
    return (1 if entry in specs else 0) + _count(root, tasks, folder / "tasks")


def _count(root: Path, tasks: Iterable[dict[str, Any]], folder: Path | None) -> int:
    count = 0
    for task in tasks:
        blocks = [task[key] for key in _BLOCKS[:1] if key in task]
        if blocks:
            count += sum(_count(root, block, folder) for block in blocks)
        elif "ansible.builtin.import_tasks" in task and folder is not None:
            inner = yaml.safe_load((folder / task["ansible.builtin.import_tasks"]).read_text())
            count += _count(root, inner, folder)
        elif "ansible.builtin.import_role" in task:
            role = task["ansible.builtin.import_role"]
            count += _role_tasks(root, role["name"], role.get("tasks_from", "main").removesuffix(".yml"))
        elif "ansible.builtin.meta" not in task:
            count += 1
    return count
