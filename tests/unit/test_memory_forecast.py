"""Forecasts of one GPU by part: vLLM's named buffers, SGLang's split, what a draft costs, verdicts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from k3ctl.memory import sglang, vllm
from k3ctl.memory.architecture import Layout
from k3ctl.memory.forecast import Setup, forecast, gib
from k3ctl.profiles.architecture import architecture
from tests.unit.plan_fixtures import packaged

GIB = 2**30
MIB = 2**20
K3 = architecture(packaged().models["kimi-k3"])
H200, B200 = (packaged().gpus[name].memory_bytes.value for name in ("h200", "b200"))
SGLANG = Setup(
    family="sglang",
    gpu_bytes=H200,
    utilization=0.85,
    kv="bf16",
    state="fp32",
    prefix_caching=True,
    workspace_bytes=int(3.5 * GIB),
    max_model_len=131072,
    max_num_seqs=32,
    max_batched=8192,
    state_ratio=0.45,
)
VLLM = replace(SGLANG, family="vllm", utilization=0.9, flashkda=True, prefix_caching=False, workspace_bytes=0)


def buffers(batched: int, sequences: int, *, flashinfer: bool = False) -> dict[str, float]:
    sizes = vllm.Buffers(batched, sequences, 1_048_576, flashkda=True, flashinfer=flashinfer)
    return vllm.workspaces(K3, 8, 93, 1536, sizes)


def test_named_buffers_of_vllm() -> None:
    found = buffers(16384, 1024, flashinfer=True)
    assert found["residual bank"] / 1e9 == pytest.approx(1.88, abs=0.01)
    assert found["FlashKDA buffers"] == 2 * 1024 * 12 * 65_536 + 16384 * 12 * 256
    assert found["chunked context"] == 65_536 * 1152 + 65_536 * 12 * 640
    assert found["FlashInfer workspace"] == 394 * MIB
    assert buffers(0, 32)["FlashKDA buffers"] / 1e6 == pytest.approx(50, abs=1)
    assert "FlashInfer workspace" not in buffers(16384, 32)


def test_half_a_model_needs_half_a_residual_bank() -> None:
    sizes = vllm.Buffers(16384, 32, 8192, flashkda=False, flashinfer=False)
    first, whole = (vllm.workspaces(K3, 8, last, 1536, sizes) for last in (47, 93))
    assert first["residual bank"] == whole["residual bank"] / 2
    assert "FlashKDA buffers" not in first


def test_a_larger_measured_sum_wins_over_the_named_buffers() -> None:
    small, large = (forecast(K3, Layout(8, 2), replace(VLLM, workspace_bytes=n * GIB)) for n in (0, 9))
    assert small.memory.stages[0].total("workspace") < 2 * GIB
    assert all(stage.total("workspace") == 9 * GIB for stage in large.memory.stages)
    assert any(part.name == "activations, graphs, libraries" for part in large.memory.stages[0].parts)
    assert small.memory.pool_bytes > large.memory.pool_bytes


@pytest.mark.parametrize(
    ("gpu", "workspace", "ratio", "tokens"),
    [(H200, 3.3, 0.45, 396_416), (B200, 6.0, 0.9, 927_808)],
    ids=["ABCI, 16 x H200", "KO, 16 x B200"],
)
def test_sglang_leaves_what_was_published(gpu: int, workspace: float, ratio: float, tokens: int) -> None:
    setup = replace(SGLANG, gpu_bytes=gpu, workspace_bytes=int(workspace * GIB), state_ratio=ratio)
    fit = forecast(K3, Layout(16, ep=True), setup)
    assert fit.fits
    assert fit.memory.tokens == pytest.approx(tokens, rel=0.05)
    stage = fit.memory.stages[0]
    assert stage.total("weights") / GIB == pytest.approx(101.7, rel=0.005)
    assert stage.total("state") / stage.total("kv") == pytest.approx(ratio, rel=0.001)
    assert stage.total() == gpu


def test_sglang_pads_experts_to_the_kernels_width_only() -> None:
    plain = forecast(K3, Layout(32), SGLANG).memory.stages[0]
    assert next(p.bytes for p in plain.parts if p.name == "routed experts") / 1e9 == pytest.approx(60.3, rel=0.005)


def test_slots_bound_the_requests_of_sglang() -> None:
    scarce = forecast(K3, Layout(16, ep=True), replace(SGLANG, state_ratio=0.01, max_model_len=1024))
    assert scarce.memory.requests < 1
    assert not scarce.fits
    assert "5 state slots" in scarce.why
    off = forecast(K3, Layout(16, ep=True), replace(SGLANG, state_ratio=0.01, max_model_len=1024, prefix_caching=False))
    assert off.fits, "without a radix cache a request takes one slot"


def test_a_draft_takes_state_slots_or_a_ring() -> None:
    plain = sglang.pools(K3, Layout(8), 40 * GIB, ratio=0.9, kv_bytes=2)
    states = sglang.pools(
        K3, Layout(8), 40 * GIB, ratio=0.9, kv_bytes=2, speculation=sglang.Speculation(7, replay=False)
    )
    ring = sglang.pools(K3, Layout(8), 40 * GIB, ratio=0.9, kv_bytes=2, speculation=sglang.Speculation(7, replay=True))
    assert states.slots < ring.slots < plain.slots
    assert ring.slot_bytes - plain.slot_bytes == pytest.approx(19.5 * MIB, rel=0.005)


@pytest.mark.parametrize(("tp", "mib"), [(8, 19.5), (16, 9.7), (32, 4.9)])
def test_the_replay_ring(tp: int, mib: float) -> None:
    assert 69 * sglang.ring_bytes(K3, tp) / MIB == pytest.approx(mib, abs=0.06)


def test_a_draft_model_lies_on_the_last_stage() -> None:
    draft = packaged().models["kimi-k3"].drafts[0]
    arch = architecture(packaged().models["kimi-k3"], draft)
    setup = replace(VLLM, draft_bytes=draft.bytes.value, draft_tokens=7)
    first, last = forecast(arch, Layout(8, 2), setup).memory.stages
    assert first.total("draft") == 0
    assert last.total("draft") == round(draft.bytes.value / 8)
    assert any(part.name == "embedding" for part in last.parts), "speculation keeps an embedding with the last stage"


def test_too_large_says_by_how_much() -> None:
    fit = forecast(K3, Layout(8), VLLM)
    assert not fit.fits
    assert fit.memory.pool_bytes < 0
    assert fit.missing_bytes == -fit.memory.pool_bytes
    assert fit.why.endswith(f"{gib(fit.missing_bytes)} too much")
    assert fit.memory.tokens == 0


def test_what_is_missing_would_be_enough() -> None:
    tight = replace(VLLM, utilization=0.72, max_model_len=1_048_576)
    fit = forecast(K3, Layout(8, 2), tight)
    assert fit.missing_bytes > 0
    assert "one request of 1048576 tokens" in fit.why
    more = replace(tight, workspace_bytes=0, gpu_bytes=tight.gpu_bytes + int(fit.missing_bytes / 0.72) + 1)
    assert forecast(K3, Layout(8, 2), more).fits


def test_an_engine_without_memory_rules() -> None:
    with pytest.raises(ValueError, match="no memory rules for engine family trtllm"):
        forecast(K3, Layout(8), replace(VLLM, family="trtllm"))
