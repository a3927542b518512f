"""Which files of an inventory folder Ansible reads, as what, and which it passes over in silence. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from k3ctl.errors import Problem
from k3ctl.nearest import nearest

SPEC = "cluster.yml"
VARS_ENDINGS = (".yml", ".yaml", ".json")
# Ansible's own list for inventory folders (2.19, INVENTORY_IGNORE_EXTS and IGNORED_ALWAYS).
_IGNORED = re.compile(r"(^\.|~$|\.(pyc|pyo|swp|bak|rpm|md|txt|rst|orig|cfg|retry)$|^vars_plugins$)")
Kind = Literal["hosts", "group_vars", "host_vars", "spec", "ignored"]


@dataclass(frozen=True)
class Part:
    """One file by its path below the folder: what it is, and for variables of which group or host."""

    path: str
    kind: Kind
    entity: str = ""


def part(path: str) -> Part:
    """What a file of an inventory folder is, by its relative path."""
    parts = PurePosixPath(path).parts
    if path == SPEC:
        return Part(path, "spec")
    for index, name in enumerate(parts[:-1]):
        if name in ("group_vars", "host_vars"):
            kind: Kind = "group_vars" if name == "group_vars" else "host_vars"
            return Part(path, kind, parts[index + 1]) if _is_vars(parts[index + 1 :]) else Part(path, "ignored")
        if _IGNORED.search(name):
            return Part(path, "ignored")
    return Part(path, "ignored" if _IGNORED.search(parts[-1]) else "hosts")


def _is_vars(parts: tuple[str, ...]) -> bool:
    """group_vars/NAME, NAME.yml, or files below NAME/."""
    if any(name.startswith(".") or name.endswith("~") for name in parts):
        return False
    ending = PurePosixPath(parts[-1]).suffix
    if len(parts) == 1:
        return not re.search(r"\.(md|txt|rst|bak|orig|swp|retry|cfg)$", parts[0])
    return not ending or ending in VARS_ENDINGS


def misplaced(
    parts: Iterable[Part], shown: Mapping[str, str], groups: Iterable[str], hosts: Iterable[str]
) -> Iterator[Problem]:
    """Variables that no host gets: of a group or host that does not exist, or passed over for another file.

    `shown` maps a relative path to the path that problems show.
    """
    names = {"group_vars": [*groups], "host_vars": [*hosts]}
    taken: dict[tuple[str, str, str], str] = {}
    for item in sorted((p for p in parts if p.kind in names), key=_turn):
        folder = item.path.split(item.kind + "/")[0]
        owner = owner_of(item.entity, names[item.kind])
        what = "group" if item.kind == "group_vars" else "host"
        if owner is None:
            bare = re.sub(r"\.(yml|yaml|json)$", "", item.entity)
            near = nearest(bare, names[item.kind])
            yield Problem(
                what=f"these variables belong to no {what}: there is no {what} `{bare}`",
                file=shown[item.path],
                found=bare,
                expected="one of " + ", ".join(names[item.kind]),
                fix=f"did you mean `{near}`?" if near else "rename or remove the file",
            )
            continue
        first = taken.setdefault((folder, item.kind, owner), item.entity)
        if first != item.entity:
            yield Problem(
                what=f"Ansible passes over this file: it reads {item.kind}/{first} for `{owner}` and stops",
                file=shown[item.path],
                fix=f"move its lines into {item.kind}/{first}",
            )


def _turn(item: Part) -> tuple[int, str]:
    """Ansible looks for NAME first, then for NAME.yml, NAME.yaml and NAME.json, and takes the first only."""
    ending = PurePosixPath(item.entity).suffix
    return (VARS_ENDINGS.index(ending) + 1 if ending in VARS_ENDINGS else 0, item.path)


def owner_of(entity: str, names: Iterable[str]) -> str | None:
    """The group or host whose variables stand in a file or folder of this name: `all`, `all.yml`."""
    for name in names:
        if entity in (name, *(name + ending for ending in VARS_ENDINGS)):
            return name
    return None
