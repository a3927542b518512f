"""Every folder of tests/data/inventories, read from disk through Ansible's loader and judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3ctl.edge.ansible_dump import dump
from k3ctl.edge.ansible_inventory import load_cluster
from k3ctl.errors import ConfigError, ExitCode
from tests.unit.inventory_cases import CASES, VOCABULARY, build, expected, match, node_facts


@pytest.mark.parametrize("case", CASES)
def test_case(case: str, tmp_path: Path) -> None:
    wanted = expected(case)
    folder = build(case, tmp_path)
    if "nodes" in wanted:
        facts = node_facts(load_cluster(str(folder), vocabulary=VOCABULARY, dump=dump))
        assert [{key: fact[key] for key in item} for fact, item in zip(facts, wanted["nodes"], strict=True)] == wanted[
            "nodes"
        ]
        return
    with pytest.raises(ConfigError) as caught:
        load_cluster(str(folder), vocabulary=VOCABULARY, dump=dump)
    assert caught.value.code is ExitCode.USAGE
    left_over = match(caught.value.problems, wanted["problems"], folder)
    assert not left_over, left_over
    assert "hunter2" not in str(caught.value.problems), "a secret is shown"
