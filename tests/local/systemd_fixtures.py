"""systemd-run and systemctl for machines without systemd: real processes, just enough of the two programs' words."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

RUN = """
import json, os, subprocess, sys
args = sys.argv[1:]
argv = args[args.index("--") + 1:]
unit = next(a.split("=", 1)[1] for a in args if a.startswith("--unit="))
assert "--collect" in args and "--property=Restart=on-failure" in args, args
state = os.path.join({state!r}, unit)
log = open(state + ".log", "w")
child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
json.dump({{"pid": child.pid, "argv": argv, "args": args}}, open(state, "w"))
"""

CTL = """
import json, os, signal, sys, time
def alive(pid):
    try:
        return open("/proc/%d/stat" % pid).read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
verb, names = sys.argv[1], [a for a in sys.argv[2:] if not a.startswith("--")]
for name in names:
    try:
        pid = json.load(open(os.path.join({state!r}, name)))["pid"]
    except OSError:
        pid = 0
    runs = bool(pid) and alive(pid)
    if verb == "show":
        print("Id=%s\\nLoadState=%s\\nActiveState=%s\\nSubState=x\\nResult=success\\nNRestarts=0\\nMainPID=%d\\n" % (
            name, "loaded" if runs else "not-found", "active" if runs else "inactive", pid if runs else 0))
    elif verb == "stop":
        if runs:
            os.kill(pid, signal.SIGTERM)
        while alive(pid):
            time.sleep(0.02)
    else:
        sys.exit("unplanned: %s" % sys.argv)
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put both programs first on PATH; the folder with one file per unit."""
    state, programs = folder / "units", folder / "programs"
    state.mkdir()
    programs.mkdir()
    for name, text in (("systemd-run", RUN), ("systemctl", CTL)):
        path = programs / name
        path.write_text(f"#!{sys.executable} -I\n{text.format(state=str(state))}")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return state
