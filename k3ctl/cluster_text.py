"""The text of cluster.yml to a ClusterSpec, or every problem with file, line, key, found, expected and fix. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from k3ctl.cluster import ABSOLUTE_PATH, ClusterSpec, Origin
from k3ctl.errors import Problem
from k3ctl.inventory.variables import PLACEHOLDER
from k3ctl.nearest import nearest
from k3ctl.yaml_source import Path, YamlSource, decode, dotted, parse

_SECRET_KEY = re.compile(r"(^|_)(token|password|passwd|secret|api_?key|private_key|credentials?)$", re.IGNORECASE)
_SECRET_TEXT = re.compile(
    r"\bhf_[A-Za-z0-9]{16,}|\bsk-[A-Za-z0-9_-]{16,}|\bnvapi-[A-Za-z0-9_-]{16,}|-----BEGIN|\$ANSIBLE_VAULT|://[^/\s@]*:[^/\s@]*@"
)
_MOVE_IT = "put it into a file of mode 0600 and name the file: weights.token_file, security.api_key"
_EXPECTED = {  # pydantic's error type -> what was expected
    "string_type": "text",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "keys and values below it",
    "date_type": "a day, as 2027-01-31",
    "date_from_datetime_parsing": "a day, as 2027-01-31",
    "date_parsing": "a day, as 2027-01-31",
}


def read_spec(
    data: bytes, file: str, vocabulary: Mapping[str, Collection[str]] | None = None
) -> tuple[ClusterSpec | None, dict[str, Origin], list[Problem]]:
    """Bytes of cluster.yml to (spec, origins of the keys it gives, problems); spec is None when there are problems.

    `vocabulary` maps a top-level key (platform, model, engine) to the names known for it.
    """
    text, wrong = decode(data, file)
    source, problems = parse(text, file) if not wrong else (None, wrong)
    if source is None:
        return None, {}, list(problems)
    if not isinstance(source.value, dict):
        return None, {}, [*problems, _no_mapping(source)]
    found = [*problems, *_written(source)]
    hidden = {problem.key for problem in found}
    spec = None
    try:
        spec = ClusterSpec.model_validate(source.value)
    except ValidationError as error:
        found += [p for p in _refused(error, source) if p.key not in hidden]
    found += _unknown_names(source, vocabulary or {})
    if spec:
        found += _contradictions(spec, source)
    origins = {dotted(path): Origin("inventory", file, place.line) for path, place in _leaves(source)}
    return (None if found else spec), origins, sorted(found, key=lambda problem: problem.line or 0)


def _no_mapping(source: YamlSource) -> Problem:
    value = source.value
    what = "cluster.yml is empty" if value is None else "cluster.yml is no `key: value` lines"
    found = "a list" if isinstance(value, list) else "" if value is None else "a single value"
    expected = "at least platform, model and engine"
    return Problem(what=what, file=source.file, line=source.line(()), found=found, expected=expected)


def _leaves(source: YamlSource) -> Iterator[tuple[Path, Any]]:
    for path, place in source.values.items():
        if path and not isinstance(source.at(path), dict | list):
            yield path, place


def _written(source: YamlSource) -> Iterator[Problem]:
    """What the text shows and the values do not: secrets, placeholders, templates, numbers that YAML changed."""

    def problem(path: Path, what: str, **more: str) -> Problem:
        return Problem(what=what, file=source.file, line=source.line(path), key=dotted(path), **more)

    for path, value, place in source.scalars():
        name = str(path[-1]) if path else ""
        known = dotted(path) in ("security.api_key",) and (value == "generated" or str(value).startswith("/"))
        if _SECRET_TEXT.search(place.raw) or (_SECRET_KEY.search(name) and not known and value is not None):
            yield problem(path, "a secret stands in cluster.yml", found="***", fix=_MOVE_IT)
        elif match := PLACEHOLDER.search(place.raw):
            yield problem(path, "a placeholder is still there", found=match[0], fix="put the real value here")
        elif "{{" in place.raw:
            what = "templates are not resolved in cluster.yml"
            yield problem(path, what, found=place.raw[:60], fix="write the value itself")
        elif place.changed_number and str(value) != place.raw and not isinstance(value, str):
            what = f"YAML reads {place.raw} as {value}"
            yield problem(path, what, found=place.raw, expected="a plain number, or text in quotes")


def _refused(error: ValidationError, source: YamlSource) -> list[Problem]:
    """Pydantic's errors, those of one key put together: a value that fits none of several types is one problem."""
    grouped: dict[Path, list[Any]] = {}
    for item in error.errors():
        path = item["loc"]
        while path and item["type"] not in ("missing", "extra_forbidden") and source.values.get(path) is None:
            path = path[:-1]  # the rest names a branch of a union, not a key
        grouped.setdefault(path, []).append(item)
    return [_problem(path, items, source) for path, items in grouped.items()]


def _problem(path: Path, items: list[Any], source: YamlSource) -> Problem:
    kind, key = items[0]["type"], dotted(path)
    line = source.line(path)
    if kind == "missing":
        what = f"`{key}` is missing"
        return Problem(what=what, file=source.file, line=line, key=key, fix=f"add `{path[-1]}:`")
    if kind == "extra_forbidden":
        return _unknown_key(path, source)
    value = source.at(path)
    raw = source.values[path].raw if path in source.values else ""
    expected = " or ".join(dict.fromkeys(filter(None, (_expected(item, path) for item in items))))
    if value is None:
        what = f"`{key}` is empty"
        fix = "give it a value, or remove the line to use the default"
        return Problem(what=what, file=source.file, line=line, key=key, expected=expected, fix=fix)
    quote = "string_type" in {item["type"] for item in items} and not isinstance(value, dict | list)
    fix = f'put it in quotes: "{raw}"' if quote else ""
    if isinstance(value, str) and raw.isdecimal() and kind in ("int_type", "bool_type"):
        fix = "write the number without quotes"
    return Problem(
        what=f"`{key}` is not what it should be",
        file=source.file,
        line=line,
        key=key,
        found=_shown(value, raw),
        expected=expected,
        fix=fix,
    )


def _expected(item: Mapping[str, Any], path: Path) -> str:
    """What would have been right, in words."""
    kind, context = item["type"], item.get("ctx", {})
    if kind in _EXPECTED:
        return _EXPECTED[kind]
    if kind == "literal_error":
        return str(context["expected"])
    if kind == "string_pattern_mismatch":
        if context["pattern"] == ABSOLUTE_PATH:
            return "an absolute path without spaces"
        return _description(path) or f"text that matches {context['pattern']}"
    if kind == "value_error":
        return str(context["error"])
    message = str(item["msg"])
    return message.removeprefix("Input should be ").removeprefix("String should have ")


def _description(path: Path) -> str:
    """The description of the field at a path of the schema."""
    model: Any = ClusterSpec
    for part in path[:-1]:
        model = _model_of(model, part)
        if model is None:
            return ""
    info = model.model_fields.get(path[-1]) if isinstance(path[-1], str) else None
    if info is None:
        return ""
    nested = (m.description for arg in get_args(info.annotation) for m in getattr(arg, "__metadata__", ()) if m)
    return info.description or next((text for text in nested if text), "")


def _model_of(model: Any, part: Any) -> Any:
    """The model of one field, through lists; None when the field is no model."""
    if isinstance(part, int):
        return model
    info = model.model_fields.get(part)
    candidates = (info.annotation, *get_args(info.annotation)) if info else ()
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def _unknown_key(path: Path, source: YamlSource) -> Problem:
    model: Any = ClusterSpec
    for part in path[:-1]:
        model = _model_of(model, part) or ClusterSpec
    known = [str(name) for name in model.model_fields]
    name = str(path[-1])
    elsewhere = [key for key in _all_keys(ClusterSpec) if key.split(".")[-1] == name]
    near = nearest(name, known)
    if elsewhere:
        fix = f"it is `{elsewhere[0]}`: put it below `{elsewhere[0].rpartition('.')[0]}:`"
        fix = fix if "." in elsewhere[0] else f"`{name}` stands at the top of the file"
    else:
        fix = f"did you mean `{near}`?" if near else "remove it"
    return Problem(
        what=f"unknown key `{name}`",
        file=source.file,
        line=source.line(path),
        key=dotted(path),
        expected="one of " + ", ".join(known),
        fix=fix,
    )


def _all_keys(model: Any, prefix: str = "") -> Iterator[str]:
    for name in model.model_fields:
        yield prefix + name
        inner = _model_of(model, name)
        if inner:
            yield from _all_keys(inner, f"{prefix}{name}.")


def _shown(value: Any, raw: str) -> str:
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    kinds = {bool: "true or false", int: "number", float: "number", str: "text"}
    kind = kinds.get(type(value), type(value).__name__)
    return f"{raw[:80]} ({kind})"


def _unknown_names(source: YamlSource, vocabulary: Mapping[str, Collection[str]]) -> Iterator[Problem]:
    for key, names in vocabulary.items():
        value = source.value.get(key)
        if isinstance(value, str) and value not in names:
            near = nearest(value, names)
            yield Problem(
                what=f"unknown {key} `{value}`",
                file=source.file,
                line=source.line((key,)),
                key=key,
                found=value,
                expected="one of " + ", ".join(sorted(names)),
                fix=f"did you mean `{near}`?" if near else "",
            )


def _contradictions(spec: ClusterSpec, source: YamlSource) -> Iterator[Problem]:
    ports = {
        "endpoint.port": spec.endpoint.port,
        "ports.rendezvous": spec.ports.rendezvous,
        "ports.engine_master": spec.ports.engine_master,
    }
    yield from _twice(ports, source, "two services of one node cannot have the same port")
    paths = {f"paths.{name}": str(getattr(spec.paths, name)) for name in type(spec.paths).model_fields}
    yield from _twice(paths, source, "two kinds of files cannot share one folder")


def _twice(values: Mapping[str, Any], source: YamlSource, what: str) -> Iterable[Problem]:
    first: dict[Any, str] = {}
    for key, value in values.items():
        other = first.setdefault(value, key)
        if other != key:
            line = source.line(tuple(key.split("."))) or source.line(tuple(other.split(".")))
            yield Problem(what=what, file=source.file, line=line, key=key, found=f"{value}, also {other}")


def waiver_problems(spec: ClusterSpec, nodes: Collection[str], given: Mapping[str, Origin]) -> Iterator[Problem]:
    """Waivers for nodes that the inventory does not have."""
    for number, waiver in enumerate(spec.waivers):
        for index, name in enumerate(waiver.nodes):
            if name not in nodes:
                key = f"waivers[{number}].nodes[{index}]"
                at = given.get(key, Origin("inventory"))
                near = nearest(name, nodes)
                yield Problem(
                    what="a waiver names a node that the inventory does not have",
                    file=at.file,
                    line=at.line,
                    key=key,
                    found=name,
                    expected="one of " + ", ".join(nodes),
                    fix=f"did you mean `{near}`?" if near else "",
                )
