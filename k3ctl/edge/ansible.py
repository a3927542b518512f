"""Runs our playbooks with ansible-runner: private data in, small typed events and one result per node out."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_runner import Runner
from ansible_runner.config.runner import RunnerConfig

from k3ctl.cluster import Cluster
from k3ctl.edge.ansible_content import PLAYBOOKS, content_digest, playbook_file, task_count
from k3ctl.edge.ansible_events import Recorder
from k3ctl.edge.ansible_files import inventory_files, secrets_in, ssh_config, ssh_options
from k3ctl.edge.ansible_scratch import Scratch, open_scratch
from k3ctl.edge.content import content_root
from k3ctl.errors import ConfigError, Problem
from k3ctl.protocols import PlayEvent, PlayResult, Stop

POLL_SECONDS = 0.5  # how often ansible-runner asks whether to stop; its own default is 5 s
EVIDENCE_LINES = 20

# What a play may see of our environment. Everything else stays out: ansible-runner writes the whole environment of the
# play to disk, and tokens (HF_TOKEN and the like) live there.
KEPT_ENVIRONMENT = ("HOME", "USER", "LOGNAME", "SSH_AUTH_SOCK", "TMPDIR", "XDG_RUNTIME_DIR", "TZ", "KRB5CCNAME")

logging.getLogger("ansible-runner").setLevel(logging.CRITICAL)  # its debug lines print the environment


@dataclass(frozen=True)
class AnsibleRunner:
    """protocols.Ansible. `known_hosts` is the cluster's own file; private files go below `scratch_root` (0700).

    `environ` is our own environment, of which only KEPT_ENVIRONMENT reaches Ansible.
    """

    cluster: Cluster
    known_hosts: Path
    scratch_root: Path
    environ: Mapping[str, str]

    def digest(self, playbook: str) -> str:
        """sha256 (hex) over the playbook and the roles it names: equal digests mean equal work."""
        return content_digest(content_root(), self._name(playbook))

    def run(
        self,
        playbook: str,
        nodes: tuple[str, ...],
        variables: Mapping[str, Mapping[str, Any]],
        *,
        check: bool,
        stop: Stop,
        on_event: Callable[[PlayEvent], None],
        timeout_s: float = 3600.0,
    ) -> PlayResult:
        """Run one playbook over `nodes`; see protocols.Ansible.

        Raises ConfigError for an unknown playbook, no nodes, nodes that are not in the inventory and values that a
        role's argument_specs refuse; InternalError when Ansible could not start.
        """
        name = self._name(playbook)
        self._judge_nodes(nodes, variables)
        hidden = tuple(secret.reveal() for secret in secrets_in(variables))
        recorder = Recorder(on_event, task_count(content_root(), name), hidden)
        with open_scratch(self.scratch_root) as scratch:
            keys = (node.ssh.key_file for node in self.cluster.inventory.nodes if node.ssh.key_file and node.ssh.jump)
            config = scratch.write("ssh_config", ssh_config(self.known_hosts, keys))
            args = ssh_options(self.known_hosts, config)
            for file, text in inventory_files(self.cluster, nodes, variables, args).items():
                scratch.write(f"inventory/{file}", text)
            status = self._play(scratch, name, len(nodes), recorder, check=check, stop=stop, timeout_s=timeout_s)
            output = scratch.read_tail("artifacts/play/stdout", EVIDENCE_LINES)
        return recorder.result(status, output)

    def _name(self, playbook: str) -> str:
        if playbook not in PLAYBOOKS:
            raise ConfigError(
                Problem(what=f"there is no playbook '{playbook}'", found=playbook, expected=", ".join(PLAYBOOKS))
            )
        return playbook

    def _judge_nodes(self, nodes: tuple[str, ...], variables: Mapping[str, Mapping[str, Any]]) -> None:
        if not nodes:
            raise ConfigError(Problem(what="no hosts to run a playbook on", expected="one host or more"))
        known = {node.name for node in self.cluster.inventory.nodes}
        for node in (*nodes, *variables):
            if node not in known:
                raise ConfigError(
                    Problem(what=f"'{node}' is not a host of the inventory", expected=", ".join(sorted(known)))
                )

    def _play(
        self,
        scratch: Scratch,
        playbook: str,
        forks: int,
        recorder: Recorder,
        *,
        check: bool,
        stop: Stop,
        timeout_s: float,
    ) -> str:
        """Run ansible-playbook and return its status: successful, failed, canceled or timeout."""
        # In a file: ansible-runner drops settings that it is given as arguments when there is no such file.
        scratch.write("env/settings", json.dumps({"pexpect_timeout": POLL_SECONDS, "suppress_ansible_output": True}))
        config = RunnerConfig(
            private_data_dir=str(scratch.path), ident="play", quiet=True, timeout=max(1, int(timeout_s))
        )
        config.playbook = str(playbook_file(content_root(), playbook))
        config.prepare()
        config.env = {**self._environment(scratch), **_runner_variables(config.env)}
        config.command = self._command(scratch, config.playbook, forks, check=check)
        runner = Runner(config, event_handler=recorder.handle, cancel_callback=stop.is_set)
        status, _ = runner.run()
        return str(status)

    def _command(self, scratch: Scratch, playbook: str, forks: int, *, check: bool) -> list[str]:
        """argv of the play. setpriv lets the kernel end Ansible when we are killed; it hands SIGTERM to its workers."""
        program = Path(sys.executable).parent / "ansible-playbook"
        setpriv = shutil.which("setpriv")
        return [
            *([setpriv, "--pdeathsig", "TERM", "--"] if setpriv else []),
            str(program) if program.exists() else "ansible-playbook",
            "-i",
            str(scratch.path / "inventory"),
            "--forks",
            str(forks),
            *(["--check", "--diff"] if check else []),
            playbook,
        ]

    def _environment(self, scratch: Scratch) -> dict[str, str]:
        """The whole environment of the play: a few of our own variables, then how Ansible has to behave."""
        kept = {name: self.environ[name] for name in KEPT_ENVIRONMENT if name in self.environ}
        path = f"{Path(sys.executable).parent}{os.pathsep}{self.environ.get('PATH', os.defpath)}"
        return {
            **kept,
            "PATH": path,
            # Ansible refuses to start in a locale that is not UTF-8.
            "LC_ALL": "en_US.UTF-8" if sys.platform == "darwin" else "C.UTF-8",
            # The user's ansible.cfg is for the user's own plays; ours must not depend on the folder we run in.
            "ANSIBLE_CONFIG": str(scratch.write("ansible.cfg", "")),
            "ANSIBLE_HOME": str(scratch.path / "home"),
            "ANSIBLE_LOCAL_TEMP": str(scratch.path / "tmp"),
            "ANSIBLE_ROLES_PATH": str(content_root() / "roles"),
            "ANSIBLE_HOST_KEY_CHECKING": "True",
            "ANSIBLE_PIPELINING": "True",
            "ANSIBLE_TIMEOUT": "30",  # a host whose own name does not resolve keeps sudo waiting for DNS, 12 s is short
            "ANSIBLE_SSH_RETRIES": "2",
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(scratch.control),
            "ANSIBLE_INJECT_FACT_VARS": "False",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_DEPRECATION_WARNINGS": "False",
        }


def _runner_variables(env: Mapping[str, str]) -> dict[str, str]:
    """What ansible-runner itself set for its callback plugin, out of an environment that also has all of ours."""
    names = (
        "AWX_ISOLATED_DATA_DIR",
        "ANSIBLE_CALLBACK_PLUGINS",
        "ANSIBLE_STDOUT_CALLBACK",
        "ANSIBLE_RETRY_FILES_ENABLED",
    )
    own = {name: env[name] for name in names if name in env}
    return {**own, "RUNNER_OMIT_EVENTS": "False", "RUNNER_ONLY_FAILED_EVENTS": "False"}
