"""Questions to SGLang's releases: what is rendered, and how a release is asked."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from tests.engines.environments import Environment
from tests.engines.rendered import Rendered, profiles, rendered

ENVIRONMENT = Environment("sglang")
ENGINE = profiles().engines["sglang"]
SCRIPT = Path(__file__).parent / "sglang/ask.py"


@cache
def everything() -> tuple[Rendered, ...]:
    """All ranks of all plans."""
    return tuple(rendered("sglang"))


def arguments(one: Rendered) -> list[str]:
    """What follows `sglang serve`."""
    assert one.argv[0] == "serve"
    return list(one.argv[1:])


def question_id(one: Rendered) -> str:
    """Unique for one rank of one version."""
    return f"{one.version} {one.name}"


def ask(release: str, questions: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """The release's options and answers, see sglang/ask.py. `folder` takes the two files."""
    source, target = folder / f"{release}.json", folder / f"{release}-answers.json"
    source.write_text(json.dumps(questions))
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SGLANG_")},
        "PYTHONPATH": str(ENVIRONMENT.source(release)),
    }
    done = subprocess.run(
        ["nice", str(ENVIRONMENT.python), str(SCRIPT), str(source), str(target)],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers: dict[str, Any] = json.loads(target.read_text())
    return answers
