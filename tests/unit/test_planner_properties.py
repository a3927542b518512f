"""What holds for every plan: ranks and layers partitioned exactly, no port twice, nothing that depends on chance."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3ctl.errors import ConfigError
from k3ctl.memory.architecture import Layout
from k3ctl.memory.forecast import Setup, forecast
from k3ctl.memory.weights import checkpoint, per_gpu
from k3ctl.plan import Plan
from k3ctl.planner import make_plan
from k3ctl.planner.shape import by_rule, documented
from k3ctl.planner.subject import subject_of
from k3ctl.profiles.architecture import architecture
from tests.unit.plan_fixtures import cluster, packaged, profiles

K3 = architecture(packaged().models["kimi-k3"])
PLACES = st.sampled_from([("h200", 2), ("h200", 4), ("h100", 4), ("b300", 1), ("b300", 2), ("mi355x", 1)])
PORT = st.integers(1024, 32767)
WISHES = st.fixed_dictionaries(
    {},
    optional={
        "tensor_parallel": st.sampled_from([1, 2, 8, 16, 32]),
        "pipeline_parallel": st.sampled_from([1, 2, 4]),
        "max_model_len": st.integers(16, 1_048_576),
        "max_num_seqs": st.integers(1, 64),
        "kv_cache": st.sampled_from(["fp8", "bf16"]),
        "replicas": st.sampled_from([1, 2]),
        "gpu_memory_utilization": st.floats(0.5, 1.0),
    },
)


def planned(place: tuple[str, int], wishes: dict[str, Any], ports: tuple[int, int, int]) -> Plan | None:
    """The plan, or None when it is refused."""
    spec = {
        "strategy": wishes,
        "endpoint": {"port": ports[0]},
        "ports": {"rendezvous": ports[1], "engine_master": ports[2]},
    }
    try:
        return make_plan(cluster(*place, **spec), profiles())
    except ConfigError:
        return None


@settings(max_examples=150, deadline=None)
@given(PLACES, WISHES, st.tuples(PORT, PORT, PORT))
def test_every_plan(place: tuple[str, int], wishes: dict[str, Any], ports: tuple[int, int, int]) -> None:
    made = planned(place, wishes, ports)
    if made is None:
        return
    assert made == planned(place, wishes, ports), "the same input, another plan"
    used: set[tuple[int, int]] = set()
    for port in made.ports:
        for rank in port.ranks:
            assert (rank, port.port) not in used
            used.add((rank, port.port))
    count = max(1, len(made.replicas))
    for number in range(count):
        part = made.replica(number)
        assert [node.rank for node in part.nodes] == list(range(len(part.nodes)))
        world = part.tensor_parallel * part.pipeline_parallel * part.data_parallel
        assert world == len(part.nodes) * part.expected.gpus
        for node in part.nodes:
            flags = dict(word.split("=", 1) for word in node.engine_argv if word.startswith("--") and "=" in word)
            assert flags.get("--node-rank", str(node.rank)) == str(node.rank)
            assert flags.get("--master-addr", part.head.address) == part.head.address
            assert flags["--tensor-parallel-size"] == str(made.tensor_parallel)
            assert node.engine_env["VLLM_HOST_IP"] == node.address
            assert not any("{" in word and "}" in word and '"' not in word for word in node.engine_argv)
    assert sorted(name for replica in made.replicas for name in replica.nodes) in (
        [],
        sorted(node.name for node in made.nodes),
    )
    if made.memory:
        stages = made.memory.stages
        assert [layer for s in stages for layer in range(s.first_layer, s.last_layer + 1)] == list(range(1, 94))
        assert all(stage.total() == made.memory.gpu_bytes for stage in stages)
        assert made.memory.requests >= 1
        assert made.max_num_seqs <= made.memory.blocks


@pytest.mark.parametrize("place", [("h200", 2), ("h100", 4), ("b300", 1)])
def test_shapes_by_rule_use_every_gpu(place: tuple[str, int]) -> None:
    subject = subject_of(cluster(*place), profiles())
    found = list(by_rule(subject, documented(subject)[0]))
    assert all(shape.sizes.gpus == subject.world for shape in found)
    assert len({shape.text for shape in found}) == len(found)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([1, 2, 4, 8, 16, 32]), st.integers(1, 8))
def test_stages_hold_the_whole_model_once(tensor: int, stages: int) -> None:
    """All ranks of all stages together hold the checkpoint and what is replicated, never less."""
    parts = per_gpu(K3, Layout(tensor, stages), moe_floor=0)
    assert [layer for s in parts for layer in range(s.first_layer, s.last_layer + 1)] == list(range(1, 94))
    assert sum(stage.total for stage in parts) * tensor >= checkpoint(K3) * 0.999


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["vllm", "sglang"]),
    st.sampled_from([1, 2, 4, 8, 16, 32]),
    st.integers(1, 4),
    st.integers(60, 300),
    st.floats(0.5, 1.0),
    st.integers(16, 1_048_576),
)
def test_a_forecast_fits_or_says_how_much_is_missing(
    family: str, tensor: int, stages: int, gib: int, share: float, length: int
) -> None:
    setup = Setup(
        family=family,
        gpu_bytes=gib * 2**30,
        utilization=share,
        kv="bf16",
        state="fp32",
        prefix_caching=True,
        workspace_bytes=3 * 2**30,
        max_model_len=length,
        max_num_seqs=8,
        max_batched=4096,
        state_ratio=0.9,
    )
    fit = forecast(K3, Layout(tensor, stages), setup)
    assert fit.fits == (fit.memory.requests >= 1 and fit.memory.pool_bytes >= 0)
    assert fit.missing_bytes >= 0
    assert fit.why
    if fit.fits:
        assert all(part.bytes >= 0 for stage in fit.memory.stages for part in stage.parts)
