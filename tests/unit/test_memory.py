"""Memory formulas against what was published and measured (engines.md 2.2, 2.3, 3.5; recipes.md 4.2)."""

from __future__ import annotations

import pytest

from k3ctl.memory import sglang, vllm, weights
from k3ctl.memory.architecture import Layout
from k3ctl.memory.vllm import CacheSettings
from k3ctl.profiles.architecture import architecture
from k3ctl.profiles.load import load

GIB = 2**30

PROFILE = load().models["kimi-k3"]
K3 = architecture(PROFILE, next(draft for draft in PROFILE.drafts if draft.name == "inferact-dspark"))


def test_the_checkpoint() -> None:
    assert len(K3.mla_layers) == 24
    assert K3.draft_layers == 5
    assert PROFILE.shard_bytes is not None
    assert PROFILE.shard_bytes.value == 1_560_936_091_448
    assert weights.checkpoint(K3) == pytest.approx(PROFILE.shard_bytes.value, rel=1e-4)


@pytest.mark.parametrize(
    ("layout", "gib"),
    [
        (Layout(8), 191.9),
        (Layout(16), 129.8),
        (Layout(16, ep=True), 101.7),
        (Layout(8, 2), 96.5),
        (Layout(8, dp=2), 135.8),
        (Layout(8, 4), 50.5),
        (Layout(8, 4, partition=(24, 23, 23, 23)), 48.9),
        (Layout(8, 3), 65.2),
        (Layout(32), 126.8),
        (Layout(32, ep=True), 56.6),
        (Layout(16, 2), 65.4),
        (Layout(16, 2, ep=True), 51.3),
        (Layout(4, 4), 97.3),
        (Layout(4, 2), 186.9),
        (Layout(1, dp=16, ep=True), 191.3),
        (Layout(1, dp=32, ep=True), 149.2),
        (Layout(4, dp=4), 147.7),
        (Layout(4, dp=4, ep=True), 137.6),
        (Layout(8, dp=4), 79.6),
        (Layout(8, dp=4, ep=True), 86.6),
        (Layout(16, dp=2, ep=True), 82.1),
        (Layout(8, dp=2, ep=True), 128.7),
        (Layout(16, ep=True, mega_moe=True), 124.2),
    ],
    ids=str,
)
def test_weights_per_gpu(layout: Layout, gib: float) -> None:
    assert weights.worst(weights.per_gpu(K3, layout)).total / GIB == pytest.approx(gib, rel=0.005)


@pytest.mark.parametrize(
    ("tp", "state", "fp8", "bf16"),
    [(4, 1_628_160, 2944, 1536), (8, 814_080, 1536, 768), (16, 407_040, 768, 384), (32, 203_520, 384, 256)],
)
def test_states_and_blocks(tp: int, state: int, fp8: int, bf16: int) -> None:
    assert vllm.state_bytes(K3, tp, CacheSettings(1)) == state
    assert vllm.block_tokens(K3, tp, CacheSettings(1)) == fp8
    assert vllm.block_tokens(K3, tp, CacheSettings(2)) == bf16


@pytest.mark.parametrize(
    ("layout", "settings", "pool", "length", "tokens"),
    [
        # IX B300, 42.23 GiB, prefix caching on
        (Layout(8), CacheSettings(1, checkpoints=2), 42.23 * GIB, 1_048_576, 3_249_215),
        # MM TEP16, published as 1.58 GiB (rounded: 160 blocks are 1.582)
        (Layout(16, ep=True), CacheSettings(2), 1.583 * GIB, 8192, 52_428),
        # MM TP8 x DP2
        (Layout(8, dp=2), CacheSettings(2), 160_000_000, 2048, 2_389),
        # MM TP16, pool 1.67 GiB of the published 1.7-2.2
        (Layout(16), CacheSettings(2), 1.672 * GIB, 8192, 55_377),
    ],
)
def test_published_tokens(layout: Layout, settings: CacheSettings, pool: float, length: int, tokens: int) -> None:
    assert vllm.cache(K3, layout, settings, pool, length).tokens == pytest.approx(tokens, rel=0.002)


def test_pipeline_blocks() -> None:
    assert vllm.groups(K3, Layout(8, 2), drafting=False) == 13
    assert vllm.groups(K3, Layout(8, 4), drafting=False) == 7
    assert vllm.groups(K3, Layout(8), drafting=True) == 29


def test_drafting_costs() -> None:
    seven = CacheSettings(1, checkpoints=3, draft_tokens=7, drafting=True)
    cache = vllm.cache(K3, Layout(8), seven, 40 * GIB, 1_048_576)
    assert (cache.block_tokens, cache.block_bytes) == (1536, 25_657_344)
    eight = CacheSettings(1, checkpoints=3, draft_tokens=8, drafting=True)
    cache = vllm.cache(K3, Layout(8), eight, 40 * GIB, 1_048_576)
    assert (cache.block_tokens, cache.block_bytes) == (1664, 27_795_456)


def test_a_partition_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="does not split 93 layers"):
        Layout(8, 2, partition=(40, 40)).stages(93)


@pytest.mark.parametrize(
    ("layout", "rest", "ratio", "tokens"),
    [
        (Layout(16, ep=True), 14.8 * GIB, 0.45, 396_416),  # ABCI 2x8 H200
        (Layout(16, ep=True), 45.4 * GIB, 0.9, 927_808),  # KO 2x8 B200
        (Layout(32, ep=True), 52.9 * GIB, 0.058, 1_940_352),  # cookbook 4x8 H200
    ],
)
def test_sglang_tokens(layout: Layout, rest: float, ratio: float, tokens: int) -> None:
    pools = sglang.pools(K3, layout, rest, ratio=ratio, kv_bytes=2)
    assert pools.tokens == pytest.approx(tokens, rel=0.01)


@pytest.mark.parametrize(("tp", "fp32", "bf16"), [(8, 53.57, 27.69), (16, 26.78, 13.85), (32, 13.39, 6.92)])
def test_sglang_slots(tp: int, fp32: float, bf16: float) -> None:
    for state_bytes, expected in ((4, fp32), (2, bf16)):
        pools = sglang.pools(K3, Layout(tp), 40 * GIB, ratio=0.9, kv_bytes=2, state_bytes=state_bytes)
        assert pools.slot_bytes / 2**20 == pytest.approx(expected, abs=0.01)


def test_nothing_left_gives_nothing() -> None:
    pools = sglang.pools(K3, Layout(8), 0.0, ratio=0.9, kv_bytes=2)
    assert (pools.slots, pools.tokens, pools.requests) == (0, 0, 0)
    assert vllm.cache(K3, Layout(8), CacheSettings(1), 0, 8192).sequences == 0
