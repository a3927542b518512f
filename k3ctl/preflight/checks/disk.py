"""Room for the weights and the serving environment."""

from __future__ import annotations

from dataclasses import dataclass

from k3ctl.facts.host import PathSpace
from k3ctl.preflight.check import Case, Check, CouldNotTell, Verdict, fail, known, ok, value
from k3ctl.units import size

_INODES = {"weights": 1_000, "runtime": 100_000}  # files: shards and their parts; a Python environment


@dataclass(frozen=True)
class _Need:
    """What one folder still needs on its file system."""

    space: PathSpace
    bytes: int
    inodes: int


def _free(case: Case) -> Verdict:
    disk = value(case.facts.disk, "disk")
    needs = []
    for name in ("weights", "runtime"):
        space = disk.of(name)
        if space is None:
            raise CouldNotTell(f"the node said nothing about the disk of the {name}")
        needs.append(_need(case, space))
    volumes: dict[int, list[_Need]] = {}
    for need in needs:
        volumes.setdefault(need.space.device, []).append(need)
    lines = [_line(group) for group in volumes.values()]
    found, evidence = "; ".join(lines), "\n".join(_detail(need) for need in needs)
    expected = "; ".join(f"{size(sum(n.bytes for n in group))} more at {_names(group)}" for group in volumes.values())
    for group in volumes.values():
        trouble = _trouble(group)
        if trouble:
            return fail(f"{_line(group)}: {trouble[0]}", expected, trouble[1], evidence)
    return ok(found, expected, evidence)


def _need(case: Case, space: PathSpace) -> _Need:
    expected = case.plan.expected
    if space.name == "runtime":
        return _Need(space, 0, 0) if space.complete else _Need(space, expected.min_runtime_bytes, _INODES["runtime"])
    if space.held_bytes is None and space.free_bytes < expected.min_free_bytes:
        raise CouldNotTell(f"there are too many files at {space.path} to tell what is there already")
    return _Need(space, max(expected.min_free_bytes - (space.held_bytes or 0), 0), _INODES["weights"])


def _trouble(group: list[_Need]) -> tuple[str, str] | None:
    """What is wrong with one file system, and the fix; None when all is well."""
    space = group[0].space
    needed = sum(need.bytes for need in group)
    read_only = any(known(need.space.read_only, f"whether {need.space.at} is read-only") for need in group)
    if needed and read_only:
        return "mounted read-only", f"see `dmesg` for file system errors, then remount {space.at} for writing"
    if space.free_bytes < needed:
        short = size(needed - space.free_bytes)
        return f"{short} short", f"free {short} there, or set paths.* in cluster.yml to a larger file system"
    inodes = sum(need.inodes for need in group)
    if space.free_inodes is not None and space.free_inodes < inodes:
        return f"{space.free_inodes} free inodes", f"remove small files there: {inodes} inodes are needed"
    return None


def _names(group: list[_Need]) -> str:
    return " and ".join(need.space.path for need in group)


def _line(group: list[_Need]) -> str:
    return f"{size(group[0].space.free_bytes)} free at {_names(group)}"


def _detail(need: _Need) -> str:
    space = need.space
    there = f", {size(space.held_bytes)} there already" if space.held_bytes else ""
    there += ", complete" if space.complete else ""
    return f"{space.name}: {space.path} on {space.fs_type or '?'} (at {space.at}): needs {size(need.bytes)}{there}"


CHECKS = (
    Check(
        name="disk.free",
        title="room for weights and serving environment",
        scope="node",
        why="a disk that fills at the last shard costs the whole download time",
        judge=_free,
        reads=("disk",),
    ),
)
