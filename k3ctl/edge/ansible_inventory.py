"""`load_cluster`: an inventory folder to a judged Cluster. Only here are its files and Ansible touched.

Ansible's loader runs in a process of its own (`edge/ansible_dump`), with a clean environment: no ansible.cfg and no
ANSIBLE_* variable of the user changes what an inventory means. Measured on 2 cores: 0.4 s; in process 0.3 s, but with
its warnings, caches and configuration in our globals; `ansible-inventory` 0.5 s, without origins and with secrets.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from k3ctl.cluster import Cluster, ClusterSpec, Origin
from k3ctl.cluster_text import read_spec, waiver_problems
from k3ctl.edge.inventory_files import Files, key_file, read_files
from k3ctl.errors import ConfigError, Problem
from k3ctl.inventory import Inventory
from k3ctl.inventory.judge import Found, judge
from k3ctl.inventory.text import Look, look
from k3ctl.inventory.tree import SPEC, misplaced
from k3ctl.inventory.view import view_of

Dump = Callable[[dict[str, Any]], Mapping[str, Any]]
_TIMEOUT_S = 60.0  # a vault password script may ask a password manager
_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "VIRTUAL_ENV", "SSH_AUTH_SOCK")


def load_cluster(
    path: str,
    *,
    check_keys: bool = True,
    vocabulary: Mapping[str, Collection[str]] | None = None,
    dump: Dump | None = None,
) -> Cluster:
    """Read and judge an inventory folder (or one file of it) with its cluster.yml; touches no host.

    Raises ConfigError with every problem found. `check_keys` False leaves key files unjudged. `vocabulary` maps
    platform, model and engine to the known names. `dump` replaces the process that runs Ansible.
    """
    files = read_files(path)
    spec, given, wrong = _spec(files, vocabulary)
    problems = [*files.problems, *wrong]
    seen = look(files.texts.values())
    problems += seen.problems
    inventory = Inventory(files.root.name, str(files.root), ())
    if not any(part.kind == "hosts" for part in files.parts):
        what = "there is no inventory file in this folder: 0 hosts"
        problems.append(Problem(what=what, file=files.shown, expected="hosts.yml", fix="add hosts.yml"))
    elif not seen.blocked and not any(p.file != files.show(SPEC) for p in files.problems):
        inventory, more = _judged(files, seen, spec, dump or run_dump, check_keys=check_keys)
        problems += more
        if spec:
            problems += waiver_problems(spec, [node.name for node in inventory.nodes], given)
    if problems or spec is None:
        raise ConfigError(*_in_order(problems))
    return Cluster(inventory, spec, files.show(SPEC), given)


def _in_order(problems: list[Problem]) -> list[Problem]:
    """Each problem once, by file and line, as one reads the files.

    What is wrong with a variable as written is wrong again for every host that gets it: the first is enough.
    """
    written = {(p.file, p.line, p.key.rpartition(".")[2]) for p in problems if p.line and not p.node}
    kept = (p for p in problems if not p.node or (p.file, p.line, p.key) not in written)
    return sorted(dict.fromkeys(kept), key=lambda p: (p.file.endswith(SPEC), p.file, p.line or 0))


def _spec(
    files: Files, vocabulary: Mapping[str, Collection[str]] | None
) -> tuple[ClusterSpec | None, dict[str, Origin], list[Problem]]:
    if files.spec is None or any(p.file == files.show(SPEC) for p in files.problems):
        return None, {}, []  # said already
    return read_spec(files.spec, files.show(SPEC), vocabulary)


def _judged(
    files: Files, seen: Look, spec: ClusterSpec | None, dump: Dump, *, check_keys: bool
) -> tuple[Inventory, list[Problem]]:
    root = str(files.root)
    view = view_of(dump(request(files)), root, files.shown)
    if view.problems and not view.hosts:
        return Inventory(files.root.name, root, ()), list(view.problems)
    shown = {part.path: files.show(part.path) for part in files.parts}
    sources = [shown[part.path] for part in files.parts if part.kind == "hosts"]
    found = Found(
        name=files.root.name,
        path=root,
        shown=sources[0] if len(sources) == 1 else files.shown,
        look=seen,
        view=view,
        files=tuple(shown.values()),
        key_file=key_file if check_keys else None,
        subnet=spec.fabric.subnet if spec else None,
    )
    inventory, problems = judge(found)
    return inventory, [*problems, *misplaced(files.parts, shown, view.groups, view.hosts)]


def request(files: Files) -> dict[str, Any]:
    """What `edge/ansible_dump` reads: sources in Ansible's order, without cluster.yml, and the vault's passwords."""
    root = str(files.root)
    return {
        "sources": [os.path.join(root, part.path) for part in files.parts if part.kind == "hosts"],
        "basedir": root,
        "encrypted": [os.path.join(root, path) for path, text in files.texts.items() if text.encrypted],
        "vault": _vault_passwords(os.environ),
    }


def _vault_passwords(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """(vault id, file) of Ansible's own two variables. A prompt would hang, so it is refused."""
    found = []
    for entry in filter(None, environment.get("ANSIBLE_VAULT_IDENTITY_LIST", "").split(",")):
        name, sign, path = entry.strip().partition("@")
        found.append((name, path) if sign else ("default", name))
    if path := environment.get("ANSIBLE_VAULT_PASSWORD_FILE", ""):
        found.append(("default", path))
    for name, path in found:
        if path in ("prompt", "prompt_ask_vault_pass"):
            what = f"the vault password of `{name}` is to be asked for, and k3ctl does not ask"
            fix = "name a file or a script in ANSIBLE_VAULT_IDENTITY_LIST"
            raise ConfigError(Problem(what=what, fix=fix))
    return [(name, str(Path(path).expanduser().absolute())) for name, path in found]


def run_dump(asked: dict[str, Any]) -> Mapping[str, Any]:
    """Run Ansible's loader in a process of its own; the request and the reply go through pipes."""
    with tempfile.TemporaryDirectory(prefix="k3ctl-inventory-") as scratch:
        config = Path(scratch) / "ansible.cfg"
        config.touch()  # an empty configuration: without one, Ansible looks for others
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        environment |= {
            "ANSIBLE_CONFIG": str(config),
            "ANSIBLE_HOME": scratch,
            "ANSIBLE_INVENTORY_ENABLED": "yaml,ini",
            "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true",
            "LC_ALL": "C.UTF-8",  # Ansible refuses a locale that is not UTF-8
        }
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", "k3ctl.edge.ansible_dump"],
                input=json.dumps(asked),
                capture_output=True,
                text=True,
                encoding="utf-8",
                check=False,
                timeout=_TIMEOUT_S,
                env=environment,
                cwd=asked["basedir"],
            )
        except subprocess.TimeoutExpired as error:
            what = f"Ansible did not read the inventory within {_TIMEOUT_S:.0f} s"
            fix = "look at its lookups, and at the vault password script"
            raise ConfigError(Problem(what=what, file=asked["basedir"], fix=fix)) from error
    return _reply(done, asked["basedir"])


def _reply(done: subprocess.CompletedProcess[str], folder: str) -> Mapping[str, Any]:
    try:
        reply = json.loads(done.stdout)
    except ValueError as error:
        tail = "\n".join(done.stderr.strip().splitlines()[-5:])
        what = "Ansible's loader failed on the inventory"
        found = f"exit status {done.returncode}"
        raise ConfigError(Problem(what=what, file=folder, found=found, evidence=tail)) from error
    return reply if isinstance(reply, dict) else {}
