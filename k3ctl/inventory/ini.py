"""The INI form of an inventory, read line by line as Ansible reads it. Pure."""

from __future__ import annotations

import ast
import re
import shlex
from typing import Any

from k3ctl.errors import Problem
from k3ctl.inventory.variables import Written
from k3ctl.yaml_source import Place

_SECTION = re.compile(r"^\[([^:\]\s]+)(?::(\w+))?\]\s*(?:#.*)?$")
_YAML_LINE = re.compile(r"^(---|[\"']?[^\s:\[=]+[\"']?\s*:(\s.*)?$)")


def looks_like_ini(text: str) -> bool:
    """Decide by the first line that says something: `name:` and `---` are YAML."""
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith(("#", ";")):
            return not _YAML_LINE.match(line)
    return False


class IniReader:
    """Collects hosts, variables and problems of one file."""

    def __init__(self, file: str, private: bool) -> None:  # noqa: FBT001 - a property of the file
        self.file = file
        self.private = private
        self.hosts: list[tuple[str, int]] = []
        self.variables: list[Written] = []
        self.problems: list[Problem] = []

    def read(self, text: str) -> None:
        """Read all lines."""
        group, state = "ungrouped", "hosts"
        for number, raw in enumerate(text.splitlines(), 1):
            line = raw.strip()
            if not line or line[0] in "#;":
                continue
            if line.startswith("["):
                match = _SECTION.match(line)
                if match and match[2] in (None, "hosts", "children", "vars"):
                    group, state = match[1], match[2] or "hosts"
                    continue
                if not match and state == "hosts" and not line.endswith("]"):
                    self._host(line, group, number)  # a host that is an IPv6 address in brackets
                    continue
                expected = "[group], [group:children] or [group:vars]"
                self._problem(number, "this section is none that Ansible knows", line, expected)
            elif state == "hosts":
                self._host(line, group, number)
            elif state == "vars":
                self._variable(line, f"{group}.vars", number)
            elif " " in line.split("#")[0].strip():
                self._problem(number, "a line of [group:children] is one group name", line)

    def _host(self, line: str, group: str, number: int) -> None:
        try:
            tokens = shlex.split(line, comments=True)
        except ValueError as error:
            self._problem(number, f"the line cannot be split into words: {error}")
            return
        if not tokens:
            return
        self.hosts.append((tokens[0], number))
        if "=" in tokens[0]:
            self._problem(number, "the line begins with a variable", tokens[0].split("=")[0], "a host name first")
        for token in tokens[1:]:
            self._variable(token, f"{group}.{tokens[0]}", number)

    def _variable(self, text: str, owner: str, number: int) -> None:
        name, sign, value = (part.strip() for part in text.partition("="))
        if not sign:
            self._problem(number, "this is no `name=value`", name.split()[0] if name else "", "no spaces around `=`")
            return
        place = Place(number, 1, value, plain=True)
        written = Written(name, _value(value), place, self.file, f"{owner}.{name}", self.private)
        self.variables.append(written)

    def _problem(self, line: int, what: str, found: str = "", expected: str = "") -> None:
        self.problems.append(Problem(what=what, found=found, expected=expected, file=self.file, line=line))


def _value(text: str) -> Any:
    """Ansible takes what is a Python literal for one, and the rest for text."""
    if not text:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
