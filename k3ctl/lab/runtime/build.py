"""Runs the build inside a throw-away overlay over the base system, in namespaces that end with it."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from k3ctl.errors import Problem
from k3ctl.lab.process import LabFailed, tail
from k3ctl.lab.runtime.given import give
from k3ctl.lab.runtime.recipe import Recipe, source

_BUILD_S = 3000.0
_EVERY = 25  # packages between two lines for people


def build(scratch: Path, base_root: Path, recipe: Recipe, pip_cache: Path, say: Callable[[str], None]) -> Path:
    """Make the environment below `scratch`; the folder that it is in. Raises LabFailed with the end of the log."""
    for name in ("upper", "work", "root"):
        (scratch / name).mkdir(parents=True)
    pip_cache.mkdir(parents=True, exist_ok=True)
    given = give(scratch / "given")
    argv = enter_argv(scratch, base_root, recipe, pip_cache, given.folders)
    log = pip_cache.with_name("build.log")
    status = _follow(argv, given.environment, log, say)
    if status:
        raise LabFailed(
            Problem(
                what="the serving environment could not be built",
                found=f"exit status {status}" if status > 0 else f"signal {-status} (longest run: {_BUILD_S:.0f} s)",
                fix="the log says why; pip must reach the package index that this machine's own pip uses",
                file=str(log),
                evidence=tail(log.read_text(errors="replace")),
            )
        )
    return scratch / "upper" / recipe.install_path.lstrip("/")


def enter_argv(
    scratch: Path, base_root: Path, recipe: Recipe, pip_cache: Path, folders: Sequence[str]
) -> tuple[str, ...]:
    """The command of the build. Whoever waits for it dies: the kernel kills all of it (pdeathsig, --kill-child)."""
    return (
        *("setpriv", "--pdeathsig", "KILL"),
        *("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"),
        *("sh", str(source("enter.sh")), str(base_root), str(scratch), recipe.install_path, recipe.python),
        *(str(pip_cache), *folders),
    )


def _follow(argv: Sequence[str], environment: Mapping[str, str], log: Path, say: Callable[[str], None]) -> int:
    """Run, keep all output in the log, say what is for people; the exit status."""
    found = 0
    with (
        log.open("w") as out,
        subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=dict(environment),
        ) as process,
    ):
        limit = threading.Timer(_BUILD_S, process.kill)
        limit.start()
        try:
            for line in process.stdout or ():
                out.write(line)
                out.flush()
                if line.startswith("k3ctl: "):
                    say(f"serving environment: {line.removeprefix('k3ctl: ').strip()}")
                elif line.startswith("Collecting "):
                    found += 1
                    if found % _EVERY == 0:
                        say(f"serving environment: {found} packages found")
                elif line.startswith("Installing collected"):
                    say("serving environment: installing")
            return process.wait()
        finally:
            limit.cancel()
            process.kill()
