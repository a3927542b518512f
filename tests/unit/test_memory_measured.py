"""Every published figure against the arithmetic: weights within 2 %, KV tokens within 5 %, or the reason why not.

tests/data/plan/measured.yml holds them. SGLang's runs publish no pool: their rows say what the
weights left over (`rest`), which is one free figure for each count.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml

from k3ctl.memory import sglang, vllm, weights
from k3ctl.memory.architecture import Layout
from k3ctl.profiles.architecture import architecture
from tests.unit.plan_fixtures import DATA, packaged

GIB = 2**30
K3 = architecture(packaged().models["kimi-k3"])
ROWS: dict[str, list[dict[str, Any]]] = yaml.safe_load((DATA / "measured.yml").read_text())
WEIGHTS, TOKENS = ROWS["weights"], ROWS["tokens"]


def layout_of(row: dict[str, Any]) -> Layout:
    given = dict(row["layout"])
    return Layout(**{**given, "partition": tuple(given.get("partition", ()))})


def weights_gib(row: dict[str, Any]) -> float:
    stages = weights.per_gpu(K3, layout_of(row))
    found = [stage.parts[row["part"]] if "part" in row else stage.total for stage in stages]
    return (min(found) if row.get("least") else max(found)) / GIB


def cache(row: dict[str, Any], pool: float) -> vllm.Cache:
    given = row["cache"]
    settings = vllm.CacheSettings(given["kv"], checkpoints=given.get("checkpoints", 1))
    return vllm.cache(K3, layout_of(row), settings, pool, row["length"])


@pytest.mark.parametrize("row", WEIGHTS, ids=[row["row"] for row in WEIGHTS])
def test_weights(row: dict[str, Any]) -> None:
    off = weights_gib(row) / row["gib"] - 1
    if row.get("why_not"):
        assert abs(off) > 0.02, "this row no longer needs its reason"
    else:
        assert off == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("row", [row for row in TOKENS if "pool" in row], ids=lambda row: row["row"])
def test_tokens_of_a_published_pool(row: dict[str, Any]) -> None:
    assert cache(row, row["pool"]).tokens == pytest.approx(row["tokens"], rel=0.05)


@pytest.mark.parametrize("row", [row for row in TOKENS if "pool_gib" in row], ids=lambda row: row["row"])
def test_tokens_of_a_published_range(row: dict[str, Any]) -> None:
    least, most = (cache(row, gib * GIB).tokens for gib in row["pool_gib"])
    assert least * 0.95 <= row["tokens"] <= most * 1.05


@pytest.mark.parametrize("row", [row for row in TOKENS if "blocks" in row], ids=lambda row: row["row"])
def test_tokens_without_a_pool_are_whole_blocks(row: dict[str, Any]) -> None:
    one = cache(row, GIB)
    assert row["why_not"]
    made = cache(row, row["blocks"] * one.block_bytes)
    assert made.blocks == row["blocks"]
    assert made.tokens == pytest.approx(row["tokens"], rel=0.001)
    assert f"{made.blocks * made.block_bytes / GIB:.1f} GiB" in row["why_not"]


@pytest.mark.parametrize("row", [row for row in TOKENS if "rest_gib" in row], ids=lambda row: row["row"])
def test_tokens_of_sglang(row: dict[str, Any]) -> None:
    given = row["slots"]
    made = sglang.pools(K3, layout_of(row), row["rest_gib"] * GIB, ratio=given["ratio"], kv_bytes=given["kv"])
    assert made.tokens == pytest.approx(row["tokens"], rel=0.05)


def test_every_row_is_asserted_or_says_why_not() -> None:
    for row in TOKENS:
        judged = any(key in row for key in ("pool", "pool_gib", "blocks", "rest_gib"))
        assert judged or len(row["why_not"]) > 20, row["row"]
    for rows in (WEIGHTS, TOKENS):
        assert len({row["row"] for row in rows}) == len(rows)


def test_the_whole_checkpoint() -> None:
    published = packaged().models["kimi-k3"].shard_bytes
    assert published is not None
    assert math.isclose(weights.checkpoint(K3), published.value, rel_tol=5e-4)
