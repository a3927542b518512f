"""k3ctl as an operator runs it: the real program in its own process, a state folder and a lab with a hub."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k3ctl.lab.process import run
from tests.lab.conftest import LAB, MachineLab, refuse
from tests.lab.stage_fixtures import fetched

ROOT = Path(__file__).parents[2]
PHASES = ("connect", "preflight", "provision", "runtime", "stage", "burn-in", "launch", "ready", "smoke")
ENGINE_S = 600.0  # the engine's start: 40 s on an idle machine, minutes on a busy one
MARK = "K3CTL_TEST_OPERATOR"
TRANSIENT = r"k3ctl-.*-(stage-[0-9a-f]+|runtime)\.service"
# Everything that work of k3ctl could leave on a host; each line of output is a leftover.
LEFT = r"""
systemctl list-units 'k3ctl-*' --all --plain --no-legend | awk '{print $1, $3}' | grep -E '^PATTERN' || true
ls -d /tmp/tmp.* /opt/k3ctl/node/.new.* /opt/k3ctl/runtimes/*.partial /opt/k3ctl/runtimes/.k3work/*/archive \
  2>/dev/null || true
find /srv/k3ctl/weights -path '*/.k3stage/*' \( -name '*.part' -o -name job.json \) 2>/dev/null || true
for p in /proc/[0-9]*; do
  line=$(tr '\0' ' ' <$p/cmdline 2>/dev/null) || continue
  case $line in *this-very-look*) continue ;; *k3node*|*ansible*|*AnsiballZ*) ;; *) continue ;; esac
  grep -q 'k3ctl-CLUSTER\.service' $p/cgroup 2>/dev/null || echo "process $line"
done
"""


def wait_until(what: str, test: Callable[[], Any], timeout_s: float, every_s: float = 0.5) -> Any:
    """Poll until `test` gives something true, and return that. AssertionError that names `what` after the time."""
    end = time.monotonic() + timeout_s
    while True:
        found = test()
        if found:
            return found
        assert time.monotonic() < end, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(every_s)


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    words: tuple[str, ...]
    status: int
    out: str
    err: str
    seconds: float

    @property
    def json(self) -> Any:
        """What `-o json` printed."""
        return json.loads(self.out)

    @property
    def statuses(self) -> dict[str, str]:
        """Phase -> how it ended, of a command with phases."""
        return {name: phase["status"] for name, phase in self.json["phases"].items()}


@dataclass
class Running:
    """A command that runs, in a process group of its own; its stderr is read line by line."""

    words: tuple[str, ...]
    process: subprocess.Popen[str]
    began: float = field(default_factory=time.monotonic)
    lines: list[str] = field(default_factory=list)
    _out: list[str] = field(default_factory=list)
    _readers: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        for stream, into in ((self.process.stderr, self.lines), (self.process.stdout, self._out)):
            assert stream is not None
            reader = threading.Thread(target=lambda s=stream, i=into: i.extend(s), daemon=True)
            reader.start()
            self._readers.append(reader)

    @property
    def err(self) -> str:
        return "".join(self.lines)

    @property
    def out(self) -> str:
        return "".join(self._out)

    def saw(self, pattern: str, timeout_s: float = 120.0) -> str:
        """Wait for a line of stderr that matches; AssertionError when the command ends before."""

        def look() -> str:
            found = next((line for line in list(self.lines) if re.search(pattern, line)), "")
            if not found and self.process.poll() is not None:
                self._readers[0].join(5)
                found = next((line for line in self.lines if re.search(pattern, line)), "")
                assert found, f"{self.words} ended with {self.process.returncode} before {pattern!r}:\n{self.err}"
            return found

        return str(wait_until(f"{pattern!r} of {self.words}:\n{self.err}", look, timeout_s, 0.05))

    def signal(self, number: int) -> None:
        """To the process itself, not to its group."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL to the process itself: its children learn of it in no other way."""
        self.process.kill()
        assert self.process.wait(10) == -signal.SIGKILL

    def done(self, timeout_s: float = 60.0) -> Done:
        """Wait for the end. No command may ever talk in tracebacks (an engine's log on stdout may)."""
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.words} did not end within {timeout_s:.0f} s:\n{self.err}") from None
        seconds = time.monotonic() - self.began
        for reader in self._readers:
            reader.join(10)
        done = Done(self.words, status, "".join(self._out), self.err, seconds)
        assert "Traceback" not in done.err, done.err
        return done


@dataclass(frozen=True)
class Operator:
    """Somebody who runs k3ctl on a lab; `state` is XDG_STATE_HOME."""

    lab: MachineLab
    state: Path

    @property
    def cluster(self) -> str:
        return self.lab.inventory.name

    @property
    def folder(self) -> Path:
        """k3ctl's own folder for the cluster."""
        return self.state / "k3ctl" / self.cluster

    @property
    def env(self) -> dict[str, str]:
        """Of all commands; those of k3ctl itself carry a mark as well, which what they start inherits."""
        return {**os.environ, "XDG_STATE_HOME": str(self.state), "NO_COLOR": "1", "COLUMNS": "200"}

    # --- commands -----------------------------------------------------------------------------------------------------

    def start(self, *words: str, inventory: Path | None = None) -> Running:
        """Start `k3ctl WORD INVENTORY WORDS...`."""
        argv = [sys.executable, "-m", "k3ctl", words[0], str(inventory or self.lab.inventory), *words[1:]]
        process = subprocess.Popen(
            argv,
            cwd=ROOT,
            env={**self.env, MARK: str(self.state)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return Running(words, process)

    def run(self, *words: str, timeout_s: float = 120.0, inventory: Path | None = None) -> Done:
        """Run it to its end."""
        return self.start(*words, inventory=inventory).done(timeout_s)

    def up(self, *words: str) -> Done:
        """A whole `up -o json` that must succeed."""
        done = self.run("up", "-o", "json", *words, timeout_s=ENGINE_S + 600)
        assert done.status == 0, done.err
        return done

    def make_lab(self, *, bare: bool = False) -> None:
        """The lab is up, and trusted in this state folder; `bare`: with machines that nobody used before."""
        if bare and self.used():
            self._lab("destroy")
            shutil.rmtree(self.state, ignore_errors=True)
        self._lab("create")

    def used(self) -> bool:
        """True when somebody worked with these machines or this state folder before."""
        found = self.everywhere("ls -d /opt/k3ctl /srv/k3ctl /etc/k3ctl /var/lib/k3ctl 2>/dev/null || true")
        return any(found) or (self.folder / "runs").exists()

    def _lab(self, word: str) -> None:
        done = run([*LAB, word, str(self.lab.inventory)], timeout_s=1500, env=self.env)
        if not done.ok:
            refuse(f"k3ctl lab {word} failed:\n{done.stderr}")

    # --- the controller's side ----------------------------------------------------------------------------------------

    def children(self) -> list[str]:
        """Command lines of k3ctl's processes for this operator, and of what they started.

        Those carry our mark in their environment, or, since Ansible runs in a clean one, the cluster's folder.
        """
        folder, found = str(self.folder).encode(), []
        mark = f"{MARK}={self.state}".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    line = (entry / "cmdline").read_bytes()
                    environ = (entry / "environ").read_bytes()
                    if folder in line or folder in environ or mark in environ:
                        found.append(line.replace(b"\0", b" ").decode(errors="replace").strip())
                except OSError:
                    continue  # ended meanwhile
        return [line for line in found if line]

    def alone(self, timeout_s: float = 15.0) -> None:
        """No process of a command that ended or was killed is left."""
        wait_until(f"no children: {self.children()}", lambda: not self.children(), timeout_s, 0.1)

    # --- the hosts' side ----------------------------------------------------------------------------------------------

    def on(self, node: str, command: str, timeout_s: float = 60.0) -> str:
        """Output of a shell command as root on a host."""
        done = self.lab.ssh(node, command, timeout_s=timeout_s)
        assert done.ok, f"{node}: {command}: {done.stderr}"
        return done.stdout

    def everywhere(self, command: str) -> list[str]:
        return [self.on(node, command) for node in self.lab.nodes]

    def left(self) -> list[str]:
        """What work of k3ctl left on the hosts beside what it is to leave."""
        script = LEFT.replace("PATTERN", TRANSIENT).replace("CLUSTER", self.cluster)
        return [f"{node}: {line}" for node in self.lab.nodes for line in self.on(node, script).splitlines()]

    def rank(self, node: str) -> dict[str, Any]:
        """The rank's own words there: pid, engine_pid, workers, attempt."""
        return dict(json.loads(self.on(node, f"cat /var/lib/k3ctl/{self.cluster}/rank.json")))

    def engine(self) -> list[tuple[int, int, str]]:
        """(pid of the shim, pid of the engine, start of the attempt) of every node."""
        ranks = [self.rank(node) for node in self.lab.nodes]
        return [(rank["pid"], rank["engine_pid"], rank["started"]) for rank in ranks]

    def marked(self) -> list[str]:
        """Processes on any host that carry the cluster's name in their environment."""
        script = (
            f"for p in /proc/[0-9]*; do tr '\\0' '\\n' <$p/environ 2>/dev/null | grep -qx K3CTL_CLUSTER={self.cluster} "
            "&& tr '\\0' ' ' <$p/cmdline && echo; done; true"
        )
        return [f"{node}: {line}" for node in self.lab.nodes for line in self.on(node, script).splitlines() if line]

    # --- the endpoint and the hub -------------------------------------------------------------------------------------

    @property
    def head(self) -> str:
        return str(self.lab.definition.hosts[0].management)

    def ask(self, *, key: str | None = "", timeout_s: float = 20.0) -> tuple[int, str]:
        """One completion through the real endpoint: (HTTP status, text). `key` empty: the right one; None: none."""
        body = {"model": "kimi-k3-mini", "prompt": "hello", "max_tokens": 4}
        request = urllib.request.Request(
            f"http://{self.head}:8000/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        if key is not None:
            right = (self.folder / "secrets/api_key").read_text().strip()
            request.add_header("Authorization", f"Bearer {key or right}")
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as reply:  # noqa: S310
                return reply.status, str(json.load(reply)["choices"][0]["text"])
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace")
        except OSError as error:
            return 0, str(error)

    def faults(self, *rules: dict[str, Any]) -> None:
        """Put a fault script in force at the hub."""
        url = f"http://{self.lab.definition.gateway}:8901/_faults"
        request = urllib.request.Request(url, json.dumps(rules).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=10) as reply:  # noqa: S310
            assert reply.status == 200

    def hub_log(self) -> list[dict[str, Any]]:
        """Every request that the hub answered."""
        file = self.lab.definition.layout.hub / "requests.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def fetched_twice(lines: list[dict[str, Any]]) -> list[str]:
    """Files of weights, and pieces of the serving environment, that one host got whole more than once."""
    twice = [f"{client} {path}" for (client, path), times in fetched(lines).items() if times > 1]
    pieces: dict[tuple[str, str, str], int] = {}
    for line in lines:
        if "/files/runtimes/" in line["path"] and line["status"] == 206 and not line["broken"]:
            key = (line["client"], line["path"], line["range"])
            pieces[key] = pieces.get(key, 0) + 1
    return twice + [" ".join(key) for key, times in pieces.items() if times > 1]
