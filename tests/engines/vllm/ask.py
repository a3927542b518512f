"""Runs in the environment of make.py: gives argument lists to one vLLM release's own parser and configuration.

    PYTHONPATH=<release> python ask.py QUESTIONS.json ANSWERS.json

A question: {"id", "argv" (after `vllm serve`), "env", "gpu" (None: parser only; else see simulated.py), "files"}.
Answers: {"options": [...], "variables": [...], "answers": {id: {"error": what refused it, or "", "warnings": [...],
"given": {flag: [given, taken]}, "config": {...}}}}.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
PLACES = (  # newest release first
    "vllm.entrypoints.common.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.openai.cli_args",
)


class Lines(logging.Handler):
    """Keeps what the engine warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def parser_of_release() -> tuple[Any, Any]:
    """The release's parser of `vllm serve`, and its check of what was parsed."""
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    for place in PLACES:
        with contextlib.suppress(ModuleNotFoundError):
            module = importlib.import_module(place)
            return module.make_arg_parser(FlexibleArgumentParser(prog="vllm serve")), module
    raise SystemExit("this release has its parser somewhere else")


@contextlib.contextmanager
def variables(env: dict[str, str]) -> Iterator[None]:
    """The question's variables, as the engine's process would have them."""
    before = dict(os.environ)
    os.environ.update(env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def taken(parser: Any, namespace: Any, argv: list[str]) -> dict[str, list[str]]:
    """Flag -> what was given and what the parser made of it, in one spelling."""
    options = parser._option_string_actions
    found = {}
    for word in argv:
        flag, sign, value = word.partition("=")
        if not flag.startswith("--"):
            continue
        known = flag if flag in options else "--" + flag.removeprefix("--no-")
        if known not in options:
            found[flag] = [word, "<no such option>"]
            continue
        made = getattr(namespace, options[known].dest, None)
        if not sign:
            found[flag] = [str(not flag.startswith("--no-")), str(made)]
        elif value.startswith("{"):
            wanted = json.loads(value)
            found[flag] = [_plain(wanted), _plain({key: _part(made, key) for key in wanted})]
        else:
            found[flag] = [value.lower(), _plain(made[0] if isinstance(made, list) and len(made) == 1 else made)]
    return found


def _part(made: Any, key: str) -> Any:
    return made.get(key) if isinstance(made, dict) else getattr(made, key, None)


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return json.dumps({key: _plain(part) for key, part in sorted(value.items())})
    return str(getattr(value, "name", value)).lower()


def ask(parser: Any, module: Any, question: dict[str, Any]) -> dict[str, Any]:
    """One question to the parser."""
    lines, said = Lines(), io.StringIO()
    logger = logging.getLogger("vllm")
    logger.addHandler(lines)
    answer: dict[str, Any] = {"error": "", "given": {}, "config": {}}
    try:
        with variables(question["env"]), contextlib.redirect_stderr(said):
            from vllm import envs
            from vllm.platforms import current_platform
            from vllm.platforms.interface import Platform

            namespace = parser.parse_args(list(question["argv"]))
            answer["given"] = taken(parser, namespace, question["argv"])
            module.validate_parsed_serve_args(namespace)
            if "validate_environ" in vars(Platform):
                current_platform.validate_environ(True)
            else:  # 0.30 and older
                envs.validate_environ(True)
            if question.get("gpu"):
                from configure import configure

                answer["config"] = configure(namespace, question)
    except SystemExit as stop:
        answer["error"] = f"exit {stop.code}: {said.getvalue().strip()[-600:]}"
    except Exception as error:
        answer["error"] = f"{type(error).__name__}: {error}"[-2000:]
    finally:
        logger.removeHandler(lines)
    answer["warnings"] = lines.lines
    return answer


def answers(questions: list[dict[str, Any]]) -> dict[str, Any]:
    """All of one kind: on GPUs, or by the parser alone. One import; then a process for each GPU type."""
    simulated = any(question.get("gpu") for question in questions)
    if simulated:
        from simulated import Simulation

        simulation = Simulation()
    else:
        os.environ["VLLM_TARGET_DEVICE"] = "cpu"
    parser, module = parser_of_release()
    import vllm.envs

    def of(gpu: dict[str, Any] | None, group: list[dict[str, Any]]) -> dict[str, Any]:
        if gpu:
            simulation.become(gpu)
        return {question["id"]: ask(parser, module, question) for question in group}

    groups: dict[str, list[dict[str, Any]]] = {}
    for question in questions:
        groups.setdefault(json.dumps(question.get("gpu"), sort_keys=True), []).append(question)
    found: dict[str, Any] = {}
    for gpu, group in groups.items():
        found |= apart(partial(of, json.loads(gpu), group))
    return {
        "options": sorted(parser._option_string_actions),
        "variables": sorted(vllm.envs.environment_variables),
        "answers": found,
    }


def apart(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Do it in a process of its own: the engine remembers what it once asked of its platform."""
    descriptor, name = tempfile.mkstemp(prefix="k3ctl-engines-")
    os.close(descriptor)
    part = Path(name)
    child = os.fork()
    if not child:
        code = 1
        try:
            part.write_text(json.dumps(work()), encoding="utf-8")
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    if os.waitpid(child, 0)[1]:
        raise SystemExit("a part of the questions has no answers")
    made: dict[str, Any] = json.loads(part.read_text(encoding="utf-8"))
    part.unlink()
    return made


def main(source: str, target: str) -> int:
    """Exit status."""
    questions = json.loads(Path(source).read_text(encoding="utf-8"))
    found: dict[str, Any] = {}
    for simulated in (False, True):
        part = [question for question in questions if bool(question.get("gpu")) == simulated]
        if part:
            made = apart(partial(answers, part))
            found = {**made, "answers": {**found.get("answers", {}), **made["answers"]}}
    Path(target).write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
