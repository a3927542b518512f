"""Two plans against each other: what changed, and what that means for what runs. Pure; works on plans as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RESTART = "restart"
STAGE = "stage weights, restart"
INSTALL = "install the serving environment, restart"
NOTHING = "nothing that runs"

# Fields of the plan that are forecasts and explanations, or only held against hosts.
_TOLD = (
    "alternatives", "warnings", "notes", "budgets", "times", "distances", "memory", "verification", "why", "expected",
    "port_ranges", "endpoint", "platform", "layout", "replicas", "max_model_len", "max_num_seqs", "draft",
    "tensor_parallel", "pipeline_parallel", "data_parallel", "decode_context_parallel", "expert_parallel",
    "engine_family", "weights_dir",
)  # fmt: skip
_SHOWN = ("layout", "draft", "max_model_len", "max_num_seqs", "endpoint", "expected")


@dataclass(frozen=True)
class Difference:
    """One thing that differs; `node` empty for all nodes."""

    what: str
    before: str
    after: str
    effect: str
    node: str = ""


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Difference, ...]:
    """What differs from the plan `before` to the plan `after`, both as JSON has them."""
    return (*_models(before, after), *_runtime(before, after), *_nodes(before, after), *_rest(before, after))


def restarts(found: Sequence[Difference], nodes: Sequence[str]) -> tuple[str, ...]:
    """Nodes whose engine would be restarted. The ranks are a gang: one restarts all."""
    return tuple(nodes) if any(one.effect != NOTHING for one in found) else ()


def _models(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    old = {model["repo"]: model for model in before.get("models", ())}
    new = {model["repo"]: model for model in after["models"]}
    for repo in sorted(old.keys() | new.keys()):
        was, now = old.get(repo, {}), new.get(repo, {})
        if not was or not now:
            word = "added" if now else "removed"
            yield Difference(f"model {repo}", was.get("commit", ""), now.get("commit", word), STAGE if now else RESTART)
        else:
            for key in ("commit", "path", "served_name"):
                if was.get(key) != now.get(key):
                    effect = STAGE if key != "served_name" else RESTART
                    yield Difference(f"{key} of {repo}", str(was.get(key, "")), str(now[key]), effect)


def _runtime(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    was, now = before.get("runtime", {}), after["runtime"]
    for key in sorted(now):
        old = _plain(was.get(key))
        if old != _plain(now[key]):
            effect = INSTALL if key in ("digest", "url", "path", "kind", "name") else RESTART
            yield Difference(
                f"runtime {key}", _text(was.get(key)), _text(now[key]), NOTHING if key == "bytes" else effect
            )


def _nodes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    old = {node["name"]: node for node in before.get("nodes", ())}
    new = {node["name"]: node for node in after["nodes"]}
    for name in [*new, *(name for name in old if name not in new)]:
        was, now = old.get(name), new.get(name)
        if was is None or now is None:
            yield Difference("node", "" if was is None else name, "" if now is None else name, RESTART, name)
            continue
        for key in ("rank", "address", "interface"):
            if was.get(key) != now.get(key):
                yield Difference(key, str(was.get(key)), str(now[key]), RESTART, name)
        yield from _words(name, was["engine_argv"], now["engine_argv"])
        yield from _variables(name, was["engine_env"], now["engine_env"])


def _words(name: str, was: Sequence[str], now: Sequence[str]) -> Iterator[Difference]:
    """Flags that went and came; the same flags in another order are said as such."""
    gone, come = [w for w in was if w not in now], [w for w in now if w not in was]
    if gone or come:
        yield Difference("command line", " ".join(gone), " ".join(come), RESTART, name)
    elif list(was) != list(now):
        yield Difference("command line", "", "the same words in another order", RESTART, name)


def _variables(name: str, was: Mapping[str, str], now: Mapping[str, str]) -> Iterator[Difference]:
    for key in sorted(was.keys() | now.keys()):
        if was.get(key) != now.get(key):
            yield Difference(f"variable {key}", was.get(key, ""), now.get(key, ""), RESTART, name)


def _rest(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Difference]:
    """The other fields; those that only tell something change nothing that runs."""
    for key in sorted(after):
        if key in ("models", "runtime", "nodes") or _plain(before.get(key)) == _plain(after[key]):
            continue
        told = key in _TOLD
        if not told or key in _SHOWN:
            yield Difference(key, _text(before.get(key)), _text(after[key]), NOTHING if told else RESTART)


def _plain(value: Any) -> Any:
    """Tuples as JSON has them."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(_text(item) for item in value)
    return "" if value is None else str(value)
