"""Do one thing on every node at once, and keep every node's result or error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from k3ctl.errors import K3ctlError, Problem

T = TypeVar("T")


@dataclass(frozen=True)
class FanOut(Generic[T]):
    """Results and errors by node, in the order asked. A node is in exactly one of the two."""

    results: Mapping[str, T] = field(default_factory=dict)
    errors: Mapping[str, K3ctlError] = field(default_factory=dict)

    def all(self) -> Mapping[str, T]:
        """Every node's result, or one error that carries the problems of all nodes that failed."""
        if self.errors:
            kinds = {type(e) for e in self.errors.values()}
            kind = kinds.pop() if len(kinds) == 1 else K3ctlError
            raise kind(
                *(
                    problem if problem.node else replace(problem, node=node)
                    for node, error in self.errors.items()
                    for problem in error.problems
                )
            )
        return self.results


def each(nodes: Iterable[str], work: Callable[[str], T]) -> FanOut[T]:
    """Call `work(node)` for all nodes at once. Typed errors are kept per node; anything else is a bug and is raised."""
    names = list(nodes)
    if not names:
        return FanOut()
    results: dict[str, T] = {}
    errors: dict[str, K3ctlError] = {}
    with ThreadPoolExecutor(max_workers=len(names), thread_name_prefix="fanout") as pool:
        futures = {name: pool.submit(work, name) for name in names}
        for name in names:
            try:
                results[name] = futures[name].result()
            except K3ctlError as error:
                errors[name] = error
    return FanOut(results, errors)


def group_equal(problems: Iterable[Problem]) -> list[tuple[Problem, list[str]]]:
    """Problems that differ only in the node, put together: [(problem without node, its nodes)], first seen first."""
    groups: dict[Problem, list[str]] = {}
    for problem in problems:
        nodes = groups.setdefault(replace(problem, node=""), [])
        if problem.node:
            nodes.append(problem.node)
    return list(groups.items())
