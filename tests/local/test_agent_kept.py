"""Old agent files: the newest few stay, and any that a unit still names."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from k3ctl.edge.agent import install_script


@pytest.mark.skipif(os.geteuid() != 0, reason="the agent is installed as root")
def test_an_agent_that_a_unit_names_is_kept(tmp_path: Path) -> None:
    folder, units = tmp_path / "node", tmp_path / "units"
    folder.mkdir()
    units.mkdir()
    for age, name in enumerate(("aaa", "bbb", "ccc", "ddd", "eee")):
        file = folder / f"k3node-{name}.pyz"
        file.write_text("old")
        os.utime(file, (1000 + age, 1000 + age))
    (units / "k3ctl-lab.service").write_text(f"ExecStart=/usr/bin/python3 {folder}/k3node-aaa.pyz gang\n")
    script = install_script(f"{folder}/k3node-new.pyz", 3, f"{units}/k3ctl-*.service {units}/none/k3ctl-*.service")
    done = subprocess.run(["sh", "-c", script], input=b"app", capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    kept = sorted(file.name for file in folder.iterdir())
    assert kept == ["k3node-aaa.pyz", "k3node-ddd.pyz", "k3node-eee.pyz", "k3node-new.pyz"]
    assert (folder / "k3node-new.pyz").read_text() == "app"
