"""Runs in the environment of environments.py: gives argument lists to one SGLang release's own parser.

    PYTHONPATH=<release> python ask.py QUESTIONS.json ANSWERS.json

Questions: [{"id", "argv" (after `sglang serve`), "simulate": None: parser only, or what resolve.py needs}]. Answers:
{"options": {flag: choices or null}, "answers": {id: {"error": what refused it, or "", "given": {flag: [given, taken]},
"config": {...}}}}. A flag that is not literally an option is an error, although argparse takes the unique beginning of
one for the whole.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
PLACES = ("sglang.srt.utils.server_args_config_parser", "sglang.srt.server_args_config_parser")
STUBS = ("torchvision",)  # imported by 0.5.17 to 0.5.20 for images only; its builds need CUDA


class Stub(types.ModuleType):
    """A module whose every name is an empty class."""

    __path__: list[str] = []  # noqa: RUF012 - what makes a module a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stubs where nobody else found the module."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] in STUBS:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def prepare() -> None:
    """Let old releases import with the newest release's packages."""
    from transformers import AutoConfig
    from transformers.utils import import_utils

    register = AutoConfig.register

    def over(kind: str, config: Any, exist_ok: bool = False) -> None:
        # Models that transformers learned after the release are registered twice.
        register(kind, config, exist_ok=True)

    AutoConfig.register = staticmethod(over)
    import_utils.is_torchvision_available = lambda *_, **__: False
    sys.meta_path.append(Finder())


def parser_of_release() -> argparse.ArgumentParser:
    """The release's parser of `sglang serve`."""
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(prog="sglang serve")
    ServerArgs.add_cli_args(parser)
    return parser


def merged(parser: argparse.ArgumentParser, argv: list[str]) -> list[str]:
    """With the options of the file that --config names, as the release's prepare_server_args merges them."""
    if "--config" not in argv:
        return argv
    for place in PLACES:
        with contextlib.suppress(ModuleNotFoundError):
            return list(importlib.import_module(place).ConfigArgumentMerger(parser).merge_config_with_args(argv))
    raise SystemExit("this release reads --config somewhere else")


def ask(parser: argparse.ArgumentParser, argv: list[str]) -> dict[str, Any]:
    """One argument list."""
    options = parser._option_string_actions
    flags = [word.partition("=")[0] for word in argv if word.startswith("--")]
    unknown = [flag for flag in flags if flag not in options]
    if unknown:
        return {"error": f"no such option: {', '.join(unknown)}", "given": {}}
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            namespace = parser.parse_args(merged(parser, argv))
    except SystemExit as stop:
        return {"error": f"exit {stop.code}: {said.getvalue().strip()[-600:]}", "given": {}}
    given = {}
    for word in argv:
        flag, sign, value = word.partition("=")
        if word.startswith("--"):
            given[flag] = [value if sign else "True", str(getattr(namespace, options[flag].dest))]
    return {"error": "", "given": given, "api_key": namespace.api_key}


def answer(parser: argparse.ArgumentParser, question: dict[str, Any]) -> dict[str, Any]:
    """The parser's answer, and the release's whole resolution where that is asked for."""
    found = ask(parser, question["argv"])
    if found["error"] or not question.get("simulate"):
        return found
    from resolve import resolve

    try:
        found["config"] = resolve(question["argv"], question["simulate"])
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"[-2000:]
    return found


def main(source: str, target: str) -> int:
    """Exit status."""
    prepare()
    parser = parser_of_release()
    questions = json.loads(Path(source).read_text(encoding="utf-8"))
    options = {
        flag: None if action.choices is None else sorted(map(str, action.choices))
        for action in parser._actions
        for flag in action.option_strings
    }
    answers = {question["id"]: answer(parser, question) for question in questions}
    Path(target).write_text(json.dumps({"options": options, "answers": answers}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
