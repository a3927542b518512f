"""Fields of the types that files and replies are made of, as rows of a reference page."""

from __future__ import annotations

import ast
import dataclasses
import html
import inspect
import io
import re
import sys
import tokenize
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_WORDS = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    type(None): "null",
}
_LIMITS = {
    "ge": "at least {}",
    "gt": "above {}",
    "le": "at most {}",
    "lt": "below {}",
    "min_length": "length {} or more",
}


@dataclass(frozen=True)
class Row:
    """One field: its name, its type in words (Markdown), its default (Markdown, empty: required), its meaning."""

    name: str
    kind: str
    default: str
    meaning: str


def rows(kind: type) -> tuple[Row, ...]:
    """Every field of a pydantic model or a dataclass, in the order of its file."""
    hints = get_type_hints(kind, include_extras=True)
    said = _comments(kind)
    found = []
    for name, (default, description) in _declared(kind).items():
        meaning = description or said.get(name, "")
        text = type_text(hints[name])
        if issubclass(kind, BaseModel):  # limits of a plain `Field(...)` stand beside the annotation
            text = ", ".join(
                [text, *(limit for limit in _limits(kind.model_fields[name].metadata) if limit not in text)]
            )
        found.append(Row(name, text, default, meaning))
    return tuple(found)


def nested(kind: type) -> tuple[type, ...]:
    """The type and every type of ours that its fields hold, each once, in the order in which they are met."""
    found: list[type] = []
    waiting = [kind]
    while waiting:
        one = waiting.pop(0)
        if one in found:
            continue
        found.append(one)
        waiting += [part for hint in get_type_hints(one, include_extras=True).values() for part in _ours(hint)]
    return tuple(found)


def doc(kind: type) -> str:
    """The type's docstring as Markdown; braces and lists stay as they are written."""
    return inspect.cleandoc(kind.__doc__ or "")


def type_text(hint: Any) -> str:
    """A type in words: `list of text`, `[Amount](#amount) or null`, `one of `a`, `b``."""
    limits: list[str] = []
    hint = _bare(hint, limits)
    text = _plain(hint)
    return f"{text}, {', '.join(limits)}" if limits else text


def code(text: str) -> str:
    """Text as code that is safe in a table's cell."""
    if "|" in text or "`" in text or "<" in text:
        return f"<code>{html.escape(text).replace('|', '&#124;')}</code>"
    return f"`{text}`"


def cell(text: str) -> str:
    """Prose that is safe in a table's cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def anchor(title: str) -> str:
    """The fragment that a heading of that text gets."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _plain(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(code(str(item)) for item in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_text(item) for item in arguments))
    if origin is tuple:
        return f"list of {type_text(arguments[0])}"
    if origin in (dict, Mapping) or (inspect.isclass(origin) and issubclass(origin, Mapping)):
        return f"map of {type_text(arguments[0])} to {type_text(arguments[1])}"
    if _is_ours(hint):
        return f"[{hint.__name__}](#{anchor(hint.__name__)})"
    return _WORDS.get(hint) or hint.__name__.removeprefix("IPv4").removeprefix("IPv6").lower()


def _bare(hint: Any, limits: list[str]) -> Any:
    """The type without its annotations; what they limit is added to `limits`, in words."""
    while get_origin(hint) is Annotated:
        inner, *extras = get_args(hint)
        for extra in extras:
            limits += _limits(extra.metadata if isinstance(extra, FieldInfo) else [extra])
        hint = inner
    return hint


def _limits(items: Iterable[Any]) -> Iterator[str]:
    for item in items:
        for name, words in _LIMITS.items():
            if (value := getattr(item, name, None)) is not None:
                yield words.format(value)
        if pattern := getattr(item, "pattern", None):
            yield f"as {code(pattern)}"


def _declared(kind: type) -> dict[str, tuple[str, str]]:
    """Field -> (default as Markdown, its own description)."""
    if issubclass(kind, BaseModel):
        return {
            name: (
                "" if info.is_required() else _default(info.get_default(call_default_factory=True)),
                info.description or "",
            )
            for name, info in kind.model_fields.items()
        }
    found = {}
    for field in dataclasses.fields(cast("Any", kind)):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        found[field.name] = ("" if default is dataclasses.MISSING else _default(default), "")
    return found


def _default(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, BaseModel):
        return "all defaults"
    if isinstance(value, bool):
        return code(str(value).lower())
    if value in ("", (), {}):
        return "empty"
    return code(str(value))


@cache
def _comments(kind: type) -> Mapping[str, str]:
    """Field -> the comment on its line, which is where this code base says units."""
    source = inspect.getsource(sys.modules[kind.__module__])
    at = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and not token.string.startswith(("# noqa", "# fmt"))
    }
    body = next(
        node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == kind.__name__
    )
    return {
        node.target.id: at[node.end_lineno or node.lineno]
        for node in body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and (node.end_lineno or node.lineno) in at
    }


def _ours(hint: Any) -> Iterator[type]:
    """Types of ours inside an annotation."""
    if _is_ours(hint):
        yield hint
    for part in get_args(hint):
        yield from _ours(part)


def _is_ours(hint: Any) -> bool:
    return inspect.isclass(hint) and (issubclass(hint, BaseModel) or dataclasses.is_dataclass(hint))
