"""Which layout is chosen, what is said about the others, memory by part, replicas."""

from __future__ import annotations

import dataclasses
import json

import pytest

from k3ctl.errors import ConfigError
from k3ctl.plan import Plan
from k3ctl.planner import make_plan
from tests.unit.plan_fixtures import cluster, engine_under_test, plan, profiles

GIB = 2**30


def test_the_preferred_layout() -> None:
    made = plan()
    assert (made.layout, made.tensor_parallel, made.pipeline_parallel) == ("h200-tp8-pp2", 8, 2)
    assert made.warnings == ()
    assert "traffic" in made.why


def test_alternatives_say_why_not_in_numbers() -> None:
    others = {other.layout: other for other in plan().alternatives}
    documented = others["TP16"]
    assert documented.documented
    assert documented.name == "h200-tp16"
    assert "measured peak 437 against 2,202 tokens/s" in documented.why
    too_large = others["TP8 x DP2"]
    assert not too_large.documented
    assert too_large.fits is False
    assert "135.7 GiB of weights" in too_large.why
    assert too_large.why.endswith("12.8 GiB too much")
    assert others["TP16 + EP16"].fits is True
    assert others["TP16 + EP16"].why.startswith("not in the engine's profile")


def test_a_choice_against_the_preference_is_honoured_and_warned_of() -> None:
    made = plan(strategy={"tensor_parallel": 16})
    assert made.layout == "h200-tp16"
    assert len(made.warnings) == 1
    assert made.warnings[0].startswith("TP16 instead of TP8 x PP2: ")
    assert "KV tokens" in made.warnings[0]


@pytest.mark.parametrize(
    "wish", [{"layout": "h200-tp16"}, {"pipeline_parallel": 1}, {"expert_parallel": False, "tensor_parallel": 16}]
)
def test_ways_to_ask_for_one(wish: dict[str, object]) -> None:
    assert plan(strategy=wish).layout == "h200-tp16"


def test_the_preferred_layout_that_does_not_fit_is_passed_over() -> None:
    engine = engine_under_test()
    layouts = list(engine.layouts)
    large = layouts[0].model_copy(update={"name": "too-large", "tp": 8, "pp": 1, "dp": 2, "strategy": "tp_dp"})
    found = make_plan(cluster(), profiles(engine.model_copy(update={"layouts": (large, *layouts)})))
    assert found.layout == "h200-tp8-pp2"
    rejected = next(other for other in found.alternatives if other.name == "too-large")
    assert rejected.fits is False
    assert "too much" in rejected.why


def test_memory_adds_up_on_every_stage() -> None:
    for made in (plan(), plan("h100", 4), plan("b300", 1), plan("b300", 2)):
        assert made.memory is not None
        for stage in made.memory.stages:
            assert stage.total() == made.memory.gpu_bytes
            assert all(part.bytes >= 0 for part in stage.parts)
        assert len(made.memory.stages) == made.pipeline_parallel
        assert made.memory.stages[0].first_layer == 1
        assert made.memory.stages[-1].last_layer == 93


def test_a_partition_makes_stages_even() -> None:
    made = plan("h100", 4)
    assert made.memory is not None
    assert made.memory.weights_bytes / GIB == pytest.approx(48.9, rel=0.005)
    assert [stage.last_layer for stage in made.memory.stages] == [24, 47, 70, 93]
    assert made.head.engine_env["VLLM_PP_LAYER_PARTITION"] == "24,23,23,23"


def test_distances_to_measurements() -> None:
    near = {one.what: one.percent for one in plan().distances}
    assert near["weights_per_gpu"] == pytest.approx(-1.5, abs=0.1)
    assert near["kv_tokens"] == pytest.approx(0, abs=5)
    assert near["peak_throughput"] is None


def test_measurements_of_other_settings_are_not_compared() -> None:
    near = {one.what: one.percent for one in plan(strategy={"max_model_len": 4096}).distances}
    assert near["weights_per_gpu"] is not None
    assert near["kv_tokens"] is None


def test_a_draft_costs_cache_and_disk() -> None:
    plain, drafting = plan("b300", 1), plan("b300", 1, strategy={"draft": "inferact-dspark"})
    assert plain.memory is not None
    assert drafting.memory is not None
    assert drafting.draft == "inferact-dspark"
    assert drafting.memory.block_bytes == 25_657_344
    assert drafting.memory.tokens < plain.memory.tokens
    assert any('"num_speculative_tokens":7' in word for word in drafting.head.engine_argv)


def test_a_draft_over_stages_is_allowed_by_the_newest_version_and_warned_of() -> None:
    made = plan(strategy={"draft": "inferact-dspark", "pipeline_parallel": 2})
    assert any("nobody is known to have run it" in text for text in made.warnings)


def test_no_draft_by_name() -> None:
    assert plan("b300", 1, strategy={"draft": "none"}).draft == ""


def test_more_default_sequences_than_blocks_are_lowered_and_said() -> None:
    engine = engine_under_test()
    many = tuple(layout.model_copy(update={"max_num_seqs": 1024}) for layout in engine.layouts)
    made = make_plan(cluster(strategy={"tensor_parallel": 16}), profiles(engine.model_copy(update={"layouts": many})))
    assert made.memory is not None
    assert made.max_num_seqs < 1024
    assert f"--max-num-seqs={made.max_num_seqs}" in made.head.engine_argv
    assert any("max_num_seqs is lowered from 1024" in text for text in made.warnings)


def test_wishes_for_memory_reach_the_flags() -> None:
    made = plan("b300", 1, strategy={"kv_cache": "bf16", "gpu_memory_utilization": 0.97, "max_model_len": 262144})
    argv = made.head.engine_argv
    assert "--kv-cache-dtype=bfloat16" in argv
    assert "--kv-cache-dtype=fp8" not in argv
    assert "--gpu-memory-utilization=0.97" in argv
    assert "--max-model-len=262144" in argv
    assert made.memory is not None
    assert made.memory.kv == "bf16"
    assert any("0.97 instead of the layout's 0.95 takes 5.4 GiB" in text for text in made.warnings)


def test_replicas_are_plans_of_their_own() -> None:
    made = plan(nodes=4, strategy={"replicas": 2})
    assert [replica.nodes for replica in made.replicas] == [("node1", "node2"), ("node3", "node4")]
    assert [replica.endpoint for replica in made.replicas] == ["http://192.0.2.11:8000", "http://192.0.2.13:8000"]
    assert any("router" in note for note in made.notes)
    second = made.replica(1)
    assert [(node.name, node.rank) for node in second.nodes] == [("node3", 0), ("node4", 1)]
    assert "--master-addr=198.51.100.13" in second.nodes[1].engine_argv
    assert {port.port: port.ranks for port in second.ports} == {8000: (0,), 29400: (0,), 29501: (0,)}
    alone = plan(nodes=2)
    assert [node.engine_argv[3:] for node in made.replica(0).nodes] == [node.engine_argv[3:] for node in alone.nodes]
    assert alone.replica(0) is alone


def test_a_plan_is_plain_data() -> None:
    made = plan()
    assert json.loads(json.dumps(dataclasses.asdict(made)))["memory"]["stages"][1]["first_layer"] == 48


def test_a_model_with_facts_supplied_is_planned() -> None:
    spec = {
        "model": "kimi-k3.1-pro",
        "model_facts": {"heads": 96, "bytes": 1_600_000_000_000, "architecture": "kimi-k3"},
        "weights": {"revision": "0123456789012345678901234567890123456789"},
    }
    made = plan("mi355x", 1, **spec)
    assert made.memory is not None
    assert made.expected.min_free_bytes > 1_600_000_000_000


def test_a_model_without_an_architecture_is_planned_without_memory() -> None:
    spec = {
        "model": "kimi-k3.1-pro",
        "model_facts": {"heads": 96, "bytes": 1_600_000_000_000},
        "weights": {"revision": "0123456789012345678901234567890123456789"},
    }
    made = plan("mi355x", 1, **spec)
    assert made.memory is None
    assert any(note.startswith("memory is not planned: model kimi-k3.1-pro") for note in made.notes)


def test_the_same_input_gives_the_same_plan() -> None:
    first, second = plan(nodes=2), plan(nodes=2)
    assert first == second
    assert isinstance(first, Plan)


def test_a_data_parallel_layout() -> None:
    made = plan("b300", 2)
    assert (made.tensor_parallel, made.data_parallel, made.expert_parallel) == (1, 16, True)
    starts = [word for node in made.nodes for word in node.engine_argv if word.startswith("--data-parallel-start")]
    assert starts == ["--data-parallel-start-rank=0", "--data-parallel-start-rank=8"]
    assert any(port.port == 29550 for port in made.ports)


def test_every_missing_fact_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        plan("mi355x", 1, model="kimi-k3.1-pro")
    keys = [problem.key for problem in caught.value.problems]
    assert keys == ["model_facts.heads", "model_facts.bytes", "weights.revision"]


def test_all_gpus_in_one_group_must_divide_the_heads() -> None:
    engine = engine_under_test()
    wide = engine.layouts[0].model_copy(
        update={"name": "any", "tp": "world", "pp": 1, "platforms": ("b300",), "nodes": (5,), "strategy": "tp"}
    )
    known = profiles(engine.model_copy(update={"layouts": (wide,)}))
    with pytest.raises(ConfigError, match="96 attention heads, which 40 ranks do not divide"):
        make_plan(cluster("b300", 5), known)
