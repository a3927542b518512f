"""A strict look at the text of an inventory, before Ansible reads it: Ansible turns most of this into warnings. Pure.

Ansible (2.19) ends with status 0 for a missing path, an empty file, tabs in YAML, `hosts:` as a list and numeric
host names, and then has no hosts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal

from k3ctl.errors import Problem
from k3ctl.inventory.ini import IniReader, looks_like_ini
from k3ctl.inventory.variables import PLACEHOLDER, Written, check
from k3ctl.nearest import did_you_mean
from k3ctl.yaml_source import YamlSource, decode, dotted, parse

_SECTIONS = ("hosts", "children", "vars")
_YAML_ENDINGS = (".yml", ".yaml", ".json")
_VAULT = b"$ANSIBLE_VAULT;"


@dataclass(frozen=True)
class TextFile:
    """One file of an inventory. `path` is shown in problems; `entity` is the group or host of a vars file."""

    path: str
    kind: Literal["hosts", "group_vars", "host_vars"]
    data: bytes
    entity: str = ""
    private: bool = False  # only its owner can read it

    @property
    def encrypted(self) -> bool:
        """True for a file that is an ansible-vault as a whole."""
        return self.data.startswith(_VAULT)


@dataclass(frozen=True)
class HostPlace:
    """Where a host (or a range of hosts) is written, with the port that is part of the name, if any."""

    name: str
    port: str
    file: str
    line: int


@dataclass(frozen=True)
class Look:
    """What the strict look found. When `blocked`, Ansible would see something else than what is written."""

    problems: tuple[Problem, ...]
    blocked: bool
    hosts: tuple[HostPlace, ...] = ()
    variables: tuple[Written, ...] = ()

    def host(self, name: str) -> HostPlace | None:
        """Where a host is written first; for one of a range, where the range is."""
        exact = next((place for place in self.hosts if place.name == name), None)
        return exact or next((p for p in self.hosts if "[" in p.name and name.startswith(p.name.split("[")[0])), None)


@dataclass
class _Found:
    """Collects while files are read; `fatal` problems block."""

    fatal: list[Problem] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    hosts: list[HostPlace] = field(default_factory=list)
    variables: list[Written] = field(default_factory=list)

    def host(self, pattern: str, file: str, line: int) -> None:
        """Note a host pattern: `name`, `name:port`, `[v6]:port`, `name[1:4]`."""
        match = re.fullmatch(r"(?P<name>[^:]+|\[[0-9A-Fa-f:.]+\]|[^:]*\[[^\]]+\][^:]*):(?P<port>\d+)", pattern)
        name, port = (match["name"], match["port"]) if match else (pattern, "")
        self.hosts.append(HostPlace(name, port, file, line))


def look(files: Iterable[TextFile]) -> Look:
    """Judge every file as written. All problems of all files are found, not the first."""
    found = _Found()
    for file in files:
        if file.encrypted:
            continue
        text, problems = decode(file.data, file.path)
        if problems:
            found.fatal += problems
        elif file.kind == "hosts":
            _hosts_file(file, text, found)
        else:
            _vars_file(file, text, found)
    _same_name_twice(found)
    for written in found.variables:
        found.problems += check(written)
    problems = tuple(dict.fromkeys(found.fatal + found.problems))
    return Look(problems, bool(found.fatal), tuple(found.hosts), tuple(found.variables))


def _hosts_file(file: TextFile, text: str, found: _Found) -> None:
    ending = PurePosixPath(file.path).suffix
    if text.startswith("#!"):
        what = "executable inventories are not read: k3ctl wants the same hosts at every run"
        fix = "write its output to a file: ansible-inventory -i SCRIPT --list --yaml --output hosts.yml"
        found.fatal.append(Problem(what=what, file=file.path, line=1, fix=fix))
    elif not text.strip():
        found.fatal.append(Problem(what="the inventory file is empty", file=file.path, expected="hosts in group head"))
    elif ending == ".toml":
        found.fatal.append(Problem(what="TOML inventories are not read", file=file.path, expected="YAML or INI"))
    elif ending not in _YAML_ENDINGS and (ending == ".ini" or looks_like_ini(text)):
        if file.data.startswith(b"\xef\xbb\xbf"):
            what = "the INI file begins with a byte order mark, which Ansible takes for a part of the first line"
            found.fatal.append(Problem(what=what, file=file.path, line=1, fix="save it as UTF-8 without BOM"))
        _ini_file(file, text, found)
    elif ending and ending not in _YAML_ENDINGS:
        what = "Ansible would read this file as an inventory, and it is none"
        found.fatal.append(Problem(what=what, file=file.path, fix="rename it to .bak or .txt, or move it away"))
    else:
        source = _source(file, text, found)
        if source:
            _yaml_hosts(file, source, found)


def _ini_file(file: TextFile, text: str, found: _Found) -> None:
    reader = IniReader(file.path, file.private)
    reader.read(text)
    found.fatal += reader.problems
    found.variables += reader.variables
    for pattern, line in reader.hosts:
        found.host(pattern, file.path, line)
    for written in reader.variables:
        _placeholder(file.path, written.key, str(written.value), written.place.line, found)


def _vars_file(file: TextFile, text: str, found: _Found) -> None:
    source = _source(file, text, found)
    if source is None or source.value is None:
        return  # an empty file of variables is no mistake
    if not isinstance(source.value, dict):
        what = "the file is no `name: value` lines"
        found.fatal.append(Problem(what=what, file=file.path, line=1, expected="a mapping of variables"))
        return
    _variables(file, source, (), found)


def _source(file: TextFile, text: str, found: _Found) -> YamlSource | None:
    # JSON may be indented by tabs, which the YAML parser refuses; a JSON string cannot hold a bare tab.
    source, problems = parse(text.replace("\t", " ") if file.path.endswith(".json") else text, file.path)
    found.fatal += problems
    for path, value, place in source.scalars() if source else ():
        if isinstance(value, str):
            _placeholder(file.path, dotted(path), value, place.line, found)
    return source


def _placeholder(path: str, key: str, value: str, line: int, found: _Found) -> None:
    if match := PLACEHOLDER.search(value):
        what = "a placeholder is still there"
        problem = Problem(what=what, found=match[0], file=path, line=line, key=key, fix="put the real value here")
        found.problems.append(problem)


def _yaml_hosts(file: TextFile, source: YamlSource, found: _Found) -> None:
    value = source.value
    if value is None:
        found.fatal.append(Problem(what="the inventory file is empty", file=file.path, expected="hosts in group head"))
    elif not isinstance(value, dict):
        what = f"the inventory begins with a {'list' if isinstance(value, list) else 'text'}"
        expected = "a mapping of groups, as `all:` with `children:`"
        found.fatal.append(Problem(what=what, file=file.path, line=source.line(()), expected=expected))
    elif "plugin" in value:
        what = "inventory plugins are not read: k3ctl wants the same hosts at every run"
        fix = "write its output to a file: ansible-inventory -i FILE --list --yaml --output hosts.yml"
        found.fatal.append(Problem(what=what, file=file.path, line=source.line(("plugin",)), fix=fix))
    else:
        for name, group in value.items():
            _group(file, source, (name,), group, found)


def _group(file: TextFile, source: YamlSource, path: tuple[Any, ...], group: Any, found: _Found) -> None:
    if not isinstance(path[-1], str):
        found.fatal.append(_unquoted(file, source, path, "group"))
        return
    if group is None:
        return
    if not isinstance(group, dict):
        what = f"group `{path[-1]}` is no mapping"
        problem = _at(file, source, path, what, expected="`hosts:`, `children:` or `vars:` below it")
        found.fatal.append(problem)
        return
    for key, value in group.items():
        here = (*path, key)
        if key not in _SECTIONS:
            what = f"unknown key `{key}` in group `{path[-1]}`"
            fix = did_you_mean(str(key), _SECTIONS)
            found.fatal.append(_at(file, source, here, what, expected=", ".join(_SECTIONS), fix=fix))
        elif value is not None and not isinstance(value, dict):
            found.fatal.append(_no_mapping(file, source, here, key, value))
        elif key == "vars":
            _variables(file, source, here, found)
        else:
            for name, item in (value or {}).items():
                inner = _group if key == "children" else _host
                inner(file, source, (*here, name), item, found)


def _host(file: TextFile, source: YamlSource, path: tuple[Any, ...], value: Any, found: _Found) -> None:
    name = path[-1]
    if not isinstance(name, str):
        found.fatal.append(_unquoted(file, source, path, "host"))
        return
    found.host(name, file.path, source.line(path) or 1)
    if value is not None and not isinstance(value, dict):
        example = f"`ansible_host: {value}` below it" if isinstance(value, str) else "variables below it"
        problem = _at(file, source, path, f"host `{name}` is no mapping of variables", expected=example)
        found.fatal.append(problem)
    else:
        _variables(file, source, path, found)


def _variables(file: TextFile, source: YamlSource, path: tuple[Any, ...], found: _Found) -> None:
    for name, value in (source.at(path) or {}).items():
        here = (*path, name)
        if isinstance(name, str):
            place = source.values[here]
            found.variables.append(Written(name, value, place, file.path, dotted(here), file.private))
        else:
            found.fatal.append(_unquoted(file, source, here, "variable"))


def _same_name_twice(found: _Found) -> None:
    """`10.0.0.1:1222` and `10.0.0.1:9322` are one host to Ansible, and the second port is never used."""
    ports: dict[str, HostPlace] = {}
    for place in found.hosts:
        first = ports.setdefault(place.name, place)
        if place.port and first.port and place.port != first.port:
            what = f"two entries are the same host `{place.name}`: Ansible joins them and uses one port"
            found.fatal.append(
                Problem(
                    what=what,
                    found=f"port {first.port} ({first.file}:{first.line}) and port {place.port}",
                    expected="a name of its own for each host",
                    fix=f"give each a name, with `ansible_host: {place.name}` and its `ansible_port`",
                    file=place.file,
                    line=place.line,
                    key=place.name,
                )
            )


def _no_mapping(file: TextFile, source: YamlSource, path: tuple[Any, ...], key: str, value: Any) -> Problem:
    if key == "hosts" and isinstance(value, list) and value:
        first = value[0] if isinstance(value[0], str | int) else "name"
        fix = f"write each host as a key of its own: `{first}:` instead of `- {first}`"
    else:
        fix = "write each name on a line of its own, with `:` after it"
    found = "a list" if isinstance(value, list) else "a single value"
    return _at(
        file, source, path, f"`{key}:` of group `{path[-2]}` is no mapping", found=found, expected="a mapping", fix=fix
    )


def _unquoted(file: TextFile, source: YamlSource, path: tuple[Any, ...], kind: str) -> Problem:
    place = source.keys[path]
    what = f'quote the {kind} name {place.raw or "(empty)"}: "{place.raw}"'
    read = f"{place.raw} (read as {path[-1]})"
    return _at(file, source, path, what, found=read, expected="text", fix=f'write "{place.raw}"')


def _at(
    file: TextFile,
    source: YamlSource,
    path: tuple[Any, ...],
    what: str,
    *,
    found: str = "",
    expected: str = "",
    fix: str = "",
) -> Problem:
    line = source.line(path)
    return Problem(what=what, found=found, expected=expected, fix=fix, file=file.path, line=line, key=dotted(path))
