"""An engine's command line and environment as items with their sources: joined, told apart by version, filled in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from k3ctl.errors import ConfigError, Problem
from k3ctl.planner.versions import has
from k3ctl.profiles.types import Change, Engine

_FIELD = re.compile(r"\{([a-z_]+)\}")
_FLAG = re.compile(r"^--?[a-zA-Z]")
# The launcher sets these on the node, from the interface that holds the node's cluster address.
LAUNCHER_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


@dataclass(frozen=True)
class Item:
    """One flag with its values, or one positional word (`name` empty). `source` is shown in errors."""

    name: str
    values: tuple[str, ...]
    source: str
    joined: bool = False  # --flag=value in one word

    def words(self) -> tuple[str, ...]:
        """As words of a command line."""
        if self.joined:
            return (f"{self.name}={self.values[0]}",)
        return (self.name, *self.values) if self.name else self.values


@dataclass(frozen=True)
class Arguments:
    """All of one rank, templates not filled in yet. `notes` say what the version does not have."""

    items: tuple[Item, ...]
    env: Mapping[str, tuple[str, str]]  # name -> (value, source)
    notes: tuple[str, ...] = ()


def items_of(words: Iterable[str], source: str) -> Iterator[Item]:
    """Words of one source to items: a flag takes the words after it that do not begin with a dash."""
    current: Item | None = None
    for word in words:
        if _FLAG.match(word):
            if current:
                yield current
            name, sign, value = word.partition("=")
            current = Item(name, (value,) if sign else (), source, joined=bool(sign))
        elif current is None or current.joined:
            if current:
                yield current
                current = None
            yield Item("", (word,), source)
        else:
            current = replace(current, values=(*current.values, word))
    if current:
        yield current


def join(engine: Engine, sources: Iterable[tuple[str, Iterable[str], Mapping[str, str]]]) -> Arguments:
    """Join (name, argv, env) of several sources. A flag or variable that two of them give is an error naming both."""
    items: list[Item] = []
    env: dict[str, tuple[str, str]] = {}
    problems = []
    for source, words, variables in sources:
        for item in items_of(words, source):
            other = next((one for one in items if item.name and one.name == item.name), None)
            if other:
                problems.append(_twice(engine, item.name, other.source, source))
            items.append(item)
        for name, value in variables.items():
            if name in LAUNCHER_VARIABLES:
                problems.append(_twice(engine, name, "the launcher", source))
            elif name in env:
                problems.append(_twice(engine, name, env[name][1], source))
            env[name] = (value, source)
    if problems:
        raise ConfigError(*problems)
    return Arguments(tuple(items), env)


def override(arguments: Arguments, name: str, value: str, source: str) -> Arguments:
    """Give one flag another value, in its place; append it when it is not there."""
    items = list(arguments.items)
    for index, item in enumerate(items):
        if item.name == name:
            items[index] = Item(name, (value,), source, joined=True)
            return replace(arguments, items=tuple(items))
    return replace(arguments, items=(*items, Item(name, (value,), source, joined=True)))


def for_version(engine: Engine, version: str, arguments: Arguments) -> Arguments:
    """Spell flags and variables as that version does; what it does not have is left out and said."""
    notes: list[str] = []
    items: list[Item] = []
    env: dict[str, tuple[str, str]] = {}
    flags = {change.name: change for change in engine.flags}
    variables = {change.name: change for change in engine.variables}
    for item in arguments.items:
        change = flags.get(item.name)
        if change is None or has(version, change):
            items.append(item)
        else:
            value = item.values[0] if item.values else ""
            _becomes(change, value, item, items, env)
            notes.append(_note(engine, version, change))
    for name, (value, source) in arguments.env.items():
        change = variables.get(name)
        if change is None or has(version, change):
            env[name] = (value, source)
        else:
            _becomes(change, value, Item("", (value,), source, joined=True), items, env)
            notes.append(_note(engine, version, change))
    for name in sorted({item.name for item in items if item.name}):
        same = [item for item in items if item.name == name]
        if len(same) > 1:
            raise ConfigError(_twice(engine, name, same[0].source, same[1].source))
    return Arguments(tuple(items), env, (*arguments.notes, *notes))


def fill(template: str, values: Mapping[str, str], source: str = "") -> str:
    """Fill {fields}; a field that does not exist is an error. JSON braces stay: only {word} is a field."""

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in values:
            raise ConfigError(
                Problem(
                    what=f"{source or 'a template'} names {{{name}}}, which does not exist",
                    found=template,
                    expected=", ".join(sorted(values)),
                    fix="correct the engine's profile",
                )
            )
        return values[name]

    return _FIELD.sub(value, template)


def filled(arguments: Arguments, values: Mapping[str, str]) -> Arguments:
    """All templates filled in."""
    return replace(
        arguments,
        items=tuple(
            replace(item, values=tuple(fill(value, values, item.source) for value in item.values))
            for item in arguments.items
        ),
        env={name: (fill(value, values, source), source) for name, (value, source) in arguments.env.items()},
    )


def _becomes(change: Change, value: str, item: Item, items: list[Item], env: dict[str, tuple[str, str]]) -> None:
    """Put what the version has instead, flag or variable, where it belongs."""
    name, sign, own = change.becomes.partition("=")
    if not name:
        return
    text = own if sign else value
    if name.startswith("-"):
        words = (text,) if text else ()
        items.append(Item(name, words, f"{item.source}, as {change.name}", joined=bool(words)))
    else:
        env[name] = (text, f"{item.source}, as {change.name}")


def _note(engine: Engine, version: str, change: Change) -> str:
    instead = f"{change.becomes} instead" if change.becomes else "left out"
    return f"{engine.name} {version} has no {change.name}: {instead} ({change.source})"


def _twice(engine: Engine, name: str, first: str, second: str) -> Problem:
    return Problem(
        what=f"{name} is given by two sources: {first} and {second}",
        file=f"engines/{engine.name}.yml",
        key=name,
        fix="keep it in one of them",
    )
