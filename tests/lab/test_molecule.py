"""Molecule's scenarios on two lab hosts: syntax, check on bare hosts, converge, idempotence, verify."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from k3ctl.edge.ansible_files import inventory_files, ssh_config, ssh_options
from k3ctl.edge.known_hosts import FILE
from k3ctl.provision.variables import node_variables
from tests.lab.provision_fixtures import lab_bench

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
SCENARIOS = sorted(path.parent.name for path in (ROOT / "tests" / "molecule").glob("*/molecule.yml"))


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An inventory with the variables that k3ctl itself emits."""
    state = tmp_path_factory.mktemp("state")
    with lab_bench(tmp_path_factory.mktemp("inventories"), state, "k3fm") as bench:
        folder = tmp_path_factory.mktemp("hosts")
        config = state / "ssh_config"
        config.write_text(ssh_config(state / FILE, []))
        variables = dict.fromkeys(bench.nodes, node_variables(bench.cluster, bench.plan))
        args = ssh_options(state / FILE, config)
        for name, text in inventory_files(bench.cluster, bench.nodes, variables, args).items():
            (folder / name).write_text(text)
        yield folder


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(scenario: str, inventory: Path, tmp_path: Path) -> None:
    tools = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "ANSIBLE_HOME": str(tmp_path / "ansible"),
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(tmp_path),
        "NO_COLOR": "1",
        "K3CTL_LAB_INVENTORY": str(inventory),
        "MOLECULE_GLOB": "tests/molecule/*/molecule.yml",
    }
    argv = (str(tools / "molecule"), "test", "-s", scenario)
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=280)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text[-6000:]
    for action in ("syntax", "check", "converge", "idempotence", "verify"):
        assert f"{scenario} > {action}: Executed: Successful" in text.replace(" ➜ ", " > "), text[-3000:]
