"""YAML text with line marks: a value and the place of every part of it, or problems; never an exception. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from k3ctl.errors import Problem
from k3ctl.yaml_source.reasons import bad_character, syntax

Path = tuple[Any, ...]

MAX_BYTES = 512 * 1024
_MAX_PARTS = 50_000  # entries of one file with aliases expanded: a bomb of nested aliases ends here
_MAX_DEPTH = 40
_MAX_NUMBER = 64  # characters; Python refuses to print larger ones
_STANDARD = "tag:yaml.org,2002:"
_NUMBERS = (_STANDARD + "int", _STANDARD + "float")
_MERGE = _STANDARD + "merge"
_SCALARS = frozenset(_STANDARD + kind for kind in ("str", "int", "float", "bool", "null", "timestamp", "binary"))
# The C parser is the one Ansible uses; it also takes tabs where the Python one does not.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# What YAML 1.1 reads as a number although people mean text: octal, hexadecimal, binary, base 60, `1_000`.
_CHANGED_NUMBER = re.compile(r"^[-+]?(0[0-7_]+|0x[0-9a-fA-F_]+|0b[01_]+|[0-9_]*_[0-9_]*|[0-9][0-9_]*(:[0-5]?[0-9])+)$")


class Vaulted:
    """Stands for a value that is encrypted in place (`!vault`); its text is not known here."""

    def __repr__(self) -> str:
        return "<vault>"


@dataclass(frozen=True)
class Place:
    """Where a key or value stands (1-based) and, for scalars, how it was written; `plain` = without quotes."""

    line: int
    column: int
    raw: str = ""
    plain: bool = False

    @property
    def changed_number(self) -> bool:
        """True when YAML reads the text as a number that people would write otherwise: 022 is 18, 10:20 is 620."""
        return self.plain and bool(_CHANGED_NUMBER.match(self.raw))


@dataclass(frozen=True)
class YamlSource:
    """One parsed file. `value` is None for an empty one. A path is the keys and indexes from the top."""

    file: str
    value: Any
    keys: Mapping[Path, Place] = field(default_factory=dict)
    values: Mapping[Path, Place] = field(default_factory=dict)

    def line(self, path: Path) -> int | None:
        """The line of the key at `path`, or of the nearest part above it that exists."""
        for end in range(len(path), 0, -1):
            place = self.keys.get(path[:end]) or self.values.get(path[:end])
            if place:
                return place.line
        return self.values[()].line if () in self.values else None

    def scalars(self) -> Iterator[tuple[Path, Any, Place]]:
        """Every scalar value with its path and place, in file order."""
        for path, place in self.values.items():
            value = self.at(path)
            if not isinstance(value, dict | list):
                yield path, value, place

    def at(self, path: Path) -> Any:
        """The value at a path of this source; None when there is none."""
        value = self.value
        for part in path:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return None
        return value


def decode(data: bytes, file: str) -> tuple[str, tuple[Problem, ...]]:
    """Bytes of a text file to text without its byte order mark; a problem for what is not UTF-8 text."""
    if len(data) > MAX_BYTES:
        return "", (Problem(what="the file is too large", file=file, found=f"{len(data)} bytes", expected="512 kB"),)
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "", (Problem(what="the file is UTF-16", file=file, expected="UTF-8", fix="save it as UTF-8"),)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        found = f"byte 0x{data[error.start]:02x}"
        what = "the file is not UTF-8 text"
        return "", (Problem(what=what, file=file, line=line, found=found, expected="UTF-8", fix="save it as UTF-8"),)
    return text.removeprefix("\ufeff"), ()


def parse(text: str, file: str) -> tuple[YamlSource | None, tuple[Problem, ...]]:
    """Text to a source. Without a source, the problems say why; with one, they are duplicate keys and bad values."""
    try:
        documents = [node for node in yaml.compose_all(text, Loader=_LOADER) if node is not None]
        if len(documents) > 1:
            raise _TooMuch("a second document begins here (after `---`)", documents[1].start_mark.line + 1)
        if not documents:
            return YamlSource(file, None), ()
        builder = _Builder(file)
        value = builder.build(documents[0], ())
        return YamlSource(file, value, builder.keys, builder.values), tuple(builder.problems)
    except yaml.MarkedYAMLError as error:
        problem = syntax(error, text, file)
    except yaml.reader.ReaderError as error:
        problem = bad_character(text, str(error.reason), file)
    except _TooMuch as error:
        problem = Problem(what=str(error), file=file, line=error.line)
    except (RecursionError, ValueError):
        problem = Problem(what="the file cannot be parsed: nested too deeply", file=file)
    return None, (problem,)


class _TooMuch(Exception):
    def __init__(self, what: str, line: int) -> None:
        super().__init__(what)
        self.line = line


class _Builder:
    """Makes plain values of composed nodes and notes the place of each."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.keys: dict[Path, Place] = {}
        self.values: dict[Path, Place] = {}
        self.problems: list[Problem] = []
        self._scalars = yaml.constructor.SafeConstructor()

    def build(self, node: Any, path: Path) -> Any:
        """The value of a node; its places are noted below `path`."""
        place = _place(node)
        if len(path) > _MAX_DEPTH:
            raise _TooMuch("nested too deeply, or an alias that contains itself", place.line)
        if len(self.values) > _MAX_PARTS:
            raise _TooMuch("too many entries", place.line)
        self.values[path] = place
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, place, path)

    def _scalar(self, node: Any, place: Place, path: Path) -> Any:
        if node.tag == "!vault":
            return Vaulted()
        if node.tag == "!unsafe":
            return node.value
        if node.tag not in _SCALARS:
            self._problem(place, path, f"unknown YAML tag {node.tag}", "no tag, !vault or !unsafe", "remove the tag")
            return node.value
        try:
            if node.tag in _NUMBERS and len(place.raw) > _MAX_NUMBER:
                raise ValueError(place.raw)
            return self._scalars.construct_object(node)
        except (yaml.YAMLError, ValueError, OverflowError):
            kind = node.tag.removeprefix(_STANDARD)
            self._problem(place, path, f"YAML takes {place.raw[:60]!r} as {kind}, and it is none", "", "quote it")
            return node.value

    def _mapping(self, node: Any, path: Path) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        own = sum(pair[0].tag != _MERGE for pair in node.value)
        for index, (key_node, value_node) in enumerate(self._pairs(node, path, frozenset())):
            place = _place(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                self._key_problem(key_node, place, path)
                continue
            key = self._scalar(key_node, place, path)
            if key in result:
                if index < own:
                    first = self.keys[(*path, key)].line
                    fix = f"keep one; the other is line {first}"
                    self._problem(place, (*path, key), "the key is given twice", "", fix)
                continue
            self.keys[(*path, key)] = place
            result[key] = self.build(value_node, (*path, key))
        return result

    def _pairs(self, node: Any, path: Path, above: frozenset[int]) -> list[tuple[Any, Any]]:
        """Key and value nodes: the mapping's own first, then what `<<: *base` merges in, which never wins."""
        own = [pair for pair in node.value if pair[0].tag != _MERGE]
        merged: list[tuple[Any, Any]] = []
        for key_node, value_node in node.value:
            if key_node.tag != _MERGE:
                continue
            for source in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                if not isinstance(source, yaml.MappingNode):
                    self._problem(_place(key_node), path, "`<<` can merge mappings only", "a mapping", "correct it")
                elif id(source) in above or len(above) > _MAX_DEPTH or len(merged) > _MAX_PARTS:
                    raise _TooMuch("`<<` merges too much, or a mapping into itself", _place(key_node).line)
                else:
                    merged += self._pairs(source, path, above | {id(source)})
        return own + merged

    def _key_problem(self, node: Any, place: Place, path: Path) -> None:
        template = isinstance(node, yaml.MappingNode) and node.flow_style
        if template:
            self._problem(place, path, "a value that begins with `{{` must be quoted", "", 'write "{{ name }}"')
        else:
            self._problem(place, path, "a key is a list or a mapping", "text", "correct the key")

    def _problem(self, place: Place, path: Path, what: str, expected: str, fix: str) -> None:
        key = dotted(path)
        self.problems.append(Problem(what=what, expected=expected, fix=fix, file=self.file, line=place.line, key=key))


def _place(node: Any) -> Place:
    mark = node.start_mark
    if isinstance(node, yaml.ScalarNode):
        return Place(mark.line + 1, mark.column + 1, node.value, node.style in (None, ""))
    return Place(mark.line + 1, mark.column + 1)


def dotted(path: Path) -> str:
    """A path as people write it: ('waivers', 0, 'check') -> 'waivers[0].check'."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) and not isinstance(part, bool) else f".{part}"
    return text.removeprefix(".")
