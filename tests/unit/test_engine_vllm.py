"""vLLM's profile as data: what its layouts render for every place and version, without vLLM itself.

make check-engines asks the releases' own parsers and configurations; the choices here are those that all of them share.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache

import pytest

from k3ctl.errors import ConfigError
from k3ctl.launch.render import GANG_GRACE_S
from k3ctl.plan import Plan
from k3ctl.planner import make_plan
from k3ctl.planner.arguments import LAUNCHER_VARIABLES
from k3ctl.planner.versions import has
from k3ctl.profiles.types import ContainerRuntime, Layout
from tests.unit.plan_fixtures import cluster, packaged

ENGINE = packaged().engines["vllm"]
VERSIONS = [version.version for version in ENGINE.versions]
# Platform and nodes -> layouts, the preferred one first; the inventories' places are all among them.
DOCUMENTED = {
    ("h200", 2): ["h200-tp8-pp2", "h200-tp16", "h200-tep16", "h200-tp8-dp2"],
    ("h200", 4): ["h200-tp8-pp4", "h200-tp8-dp4-ep32"],
    ("h100", 4): ["h100-tp8-pp4", "h100-tep32", "h100-tp32"],
    ("b200", 2): ["b200-tp8-pp2", "b200-tp16", "b200-tep16", "dep16"],
    ("b300", 1): ["b300-tp8", "b300-tp8-dcp8"],
    ("b300", 2): ["b300-tp8-pp2", "dep16"],
    ("gb300", 2): ["gb300-tp8", "gb300-tp8-dcp8"],
    ("gb200", 4): ["gb200-tp16", "gb200-tep16", "gb200-tp4-dp4-ep16", "rack-tp4-dp4", "rack-dep16"],
    ("gb300", 4): ["gb300-tp16", "gb300-tep16", "rack-tp4-dp4", "rack-dep16"],
    ("mi355x", 1): ["mi355x-tp8", "mi355x-tp8-dcp8"],
    ("mi350x", 1): ["mi350x-tp8"],
    ("rtx6000d", 2): ["rtx6000d-tp8-pp4", "rtx6000d-tep16-pp2"],
}
# Documented by others and too large: the weights of one GPU against the GPU, in GiB.
REFUSED = {
    ("dep16", "b200"): r"191\.3 GiB of weights.*of 179\.1 GiB",
    ("rack-dep16", "gb200"): r"191\.3 GiB of weights.*of 185\.0 GiB",
    ("h100-tp32", "h100"): r"126\.8 GiB of weights.*of 79\.6 GiB",
}
PLACES = [(layout, platform) for layout in ENGINE.layouts for platform in layout.platforms]
FITTING = [(layout, platform) for layout, platform in PLACES if (layout.name, platform) not in REFUSED]
IDS = [f"{layout.name}-{platform}" for layout, platform in FITTING]
CASES = [(layout, platform, version) for layout, platform in FITTING for version in VERSIONS]
CASE_IDS = [f"{layout.name}-{platform}-{version}" for layout, platform, version in CASES]
# Closed lists of 0.29 to 0.33, as far as a layout may use them. The parser itself does not check load formats, tool and
# reasoning parsers: those fail after the weights are loaded.
CHOICES = {
    "--moe-backend": {"auto", "marlin", "flashinfer_trtllm", "deep_gemm_mega_moe", "b12x", "aiter"},
    "--attention-backend": {
        "FLASHMLA",
        "FLASH_ATTN_MLA",
        "FLASHINFER_MLA",
        "TOKENSPEED_MLA",
        "CUTLASS_MLA",
        "TRITON_MLA",
    },
    "--load-format": {"auto", "safetensors", "fastsafetensors", "runai_streamer", "instanttensor"},
    "--kv-cache-dtype": {"auto", "fp8", "bfloat16"},
    "--all2all-backend": {"allgather_reducescatter", "deepep_v2", "flashinfer_nvlink_one_sided"},
    "--dcp-comm-backend": {"ag_rs", "a2a"},
    "--mm-encoder-tp-mode": {"weights", "data"},
    "--distributed-executor-backend": {"mp"},
    "--tool-call-parser": {"kimi_k3"},
    "--reasoning-parser": {"kimi_k3"},
}
PREFILL = {"FLASH_ATTN", "FLASHINFER", "TRTLLM_RAGGED", "TOKENSPEED_MLA", "ROCM_AITER_FA"}
BY_COMPUTE = {"9.0": {"FLASHMLA"}, "10.0": {"TOKENSPEED_MLA"}, "10.3": {"TOKENSPEED_MLA"}, "12.0": {"TRITON_MLA"}}
PLACE_FLAGS = {"--node-rank", "--host", "--port", "--headless", "--data-parallel-start-rank"}


@cache
def planned(layout: str, platform: str, version: str = "", draft: str = "") -> Plan:
    """The plan of one layout on the nodes that it is for."""
    found = next(one for one in ENGINE.layouts if one.name == layout)
    strategy = {"layout": layout, **({"draft": draft} if draft else {})}
    spec = {"engine": "vllm", "strategy": strategy, **({"engine_version": version} if version else {})}
    return make_plan(cluster(platform, found.nodes[0], **spec), packaged())


def flags(argv: tuple[str, ...]) -> dict[str, str]:
    """Flag -> value, empty for switches."""
    return {word.partition("=")[0]: word.partition("=")[2] for word in argv if word.startswith("--")}


def test_places() -> None:
    found: dict[tuple[str, int], list[Layout]] = {}
    for layout, platform in PLACES:
        for nodes in layout.nodes:
            found.setdefault((platform, nodes), []).append(layout)
    ordered = {place: sorted(layouts, key=lambda one: one.preference) for place, layouts in found.items()}
    assert {place: [one.name for one in layouts] for place, layouts in ordered.items()} == DOCUMENTED
    for layouts in ordered.values():
        assert len({one.preference for one in layouts}) == len(layouts)
        assert layouts[0].preference == 1
    assert len({layout.name for layout in ENGINE.layouts}) == len(ENGINE.layouts)


@pytest.mark.parametrize(("platform", "nodes"), DOCUMENTED)
def test_the_preferred_one_is_planned(platform: str, nodes: int) -> None:
    made = make_plan(cluster(platform, nodes, engine="vllm"), packaged())
    assert made.layout == DOCUMENTED[platform, nodes][0]
    assert made.engine_version == ENGINE.default_version == VERSIONS[-1]
    assert made.draft == ""


@pytest.mark.parametrize(("layout", "platform"), REFUSED)
def test_too_large_is_refused_with_its_arithmetic(layout: str, platform: str) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(layout, platform)
    assert re.search(REFUSED[layout, platform], str(caught.value.problems[0].found))


@pytest.mark.parametrize(("layout", "platform", "version"), CASES, ids=CASE_IDS)
def test_every_rank_in_every_version(layout: Layout, platform: str, version: str) -> None:
    made = planned(layout.name, platform, version)
    without = {change.name for change in (*ENGINE.flags, *ENGINE.variables) if not has(version, change)}
    for node in made.nodes:
        assert node.engine_argv[:3] == ("vllm", "serve", made.models[0].path)
        words = node.engine_argv[3:]
        assert all(re.match(r"--[a-z0-9-]+(=.+)?$", word, re.DOTALL) for word in words)
        names = Counter(word.partition("=")[0] for word in words)
        assert [name for name, count in names.items() if count > 1] == []
        assert without.isdisjoint(names)
        assert without.isdisjoint(node.engine_env)
        assert set(LAUNCHER_VARIABLES).isdisjoint(node.engine_env)
        assert "--fail-on-environ-validation" in names
        assert not any("api-key" in name or "{" in name for name in names)
        assert not any(re.search(r"\{[a-z_]+\}", value) for value in node.engine_env.values())
        assert node.engine_env["VLLM_HOST_IP"] == node.address
        assert int(node.engine_env["VLLM_ENGINE_READY_TIMEOUT_S"]) == made.timeouts.engine_ready >= 3600


@pytest.mark.parametrize(("layout", "platform"), FITTING, ids=IDS)
def test_choices_are_valid_for_the_gpu(layout: Layout, platform: str) -> None:
    profiles = packaged()
    gpu = profiles.gpus[profiles.platforms[platform].gpu]
    for node in planned(layout.name, platform).nodes:
        given = flags(node.engine_argv)
        for flag, value in given.items():
            assert value in CHOICES.get(flag, {value}), f"{flag}={value}"
        if "--attention-backend" in given:
            assert given["--attention-backend"] in BY_COMPUTE[gpu.compute]
        if "--attention-config" in given:
            said = json.loads(given["--attention-config"])
            assert said["mla_prefill_backend"].upper() in PREFILL
        if given.get("--moe-backend") == "deep_gemm_mega_moe":
            assert "--enable-expert-parallel" in given
            assert layout.mega_moe
        if gpu.vendor == "amd":
            assert not any("flashinfer" in word for word in node.engine_argv)


@pytest.mark.parametrize(("layout", "platform"), FITTING, ids=IDS)
def test_what_the_memory_depends_on_is_always_given(layout: Layout, platform: str) -> None:
    made = planned(layout.name, platform)
    assert layout.memory is not None
    assert made.memory is not None
    for node in made.nodes:
        given = flags(node.engine_argv)
        assert float(given["--gpu-memory-utilization"]) == layout.memory.utilization
        assert 1 <= int(given["--max-num-seqs"]) == made.max_num_seqs <= made.memory.blocks
        assert int(given["--max-num-batched-tokens"]) >= made.max_num_seqs
        assert int(given["--max-model-len"]) == layout.max_model_len <= 1_048_576
        on, off = "--enable-prefix-caching" in given, "--no-enable-prefix-caching" in given
        assert (on, off) == (layout.memory.prefix_caching, not layout.memory.prefix_caching)


@pytest.mark.parametrize(("layout", "platform"), FITTING, ids=IDS)
def test_ranks_differ_by_their_place_only(layout: Layout, platform: str) -> None:
    made = planned(layout.name, platform)
    head, several = made.nodes[0], len(made.nodes) > 1
    first = flags(head.engine_argv)
    assert (first["--host"], first["--port"]) == ("0.0.0.0", str(made.endpoint_port))
    assert "--headless" not in first
    for node in made.nodes[1:]:
        given = flags(node.engine_argv)
        differing = {flag for flag in given.keys() | first.keys() if given.get(flag) != first.get(flag)}
        assert differing <= PLACE_FLAGS
        assert "--headless" in given, "a worker with an API of its own would be another engine"
        assert node.engine_env == {**head.engine_env, "VLLM_HOST_IP": node.address}
        if layout.dp > 1:
            assert int(given["--data-parallel-start-rank"]) == node.rank * int(given["--data-parallel-size-local"])
        else:
            assert given["--node-rank"] == str(node.rank)
    assert ("--nnodes" in first) == (several and layout.dp == 1)
    if layout.dp > 1:
        assert int(first["--data-parallel-size-local"]) * len(made.nodes) == layout.dp
        assert first["--data-parallel-address"] == head.address
    elif several:
        assert (first["--nnodes"], first["--master-addr"]) == (str(len(made.nodes)), head.address)


@pytest.mark.parametrize(("layout", "platform"), FITTING, ids=IDS)
def test_ports(layout: Layout, platform: str) -> None:
    made = planned(layout.name, platform)
    per_node = Counter((rank, port.port) for port in made.ports for rank in port.ranks)
    assert [place for place, count in per_node.items() if count > 1] == []
    assert all(port.ranks == (0,) for port in made.ports)
    there = {port.port for port in made.ports}
    assert there >= {made.endpoint_port, made.rendezvous_port}
    assert (29550 in there) == (layout.dp > 1)
    assert (made.master_port in there) == (len(made.nodes) > 1)


@pytest.mark.parametrize(("layout", "platform"), FITTING, ids=IDS)
def test_planned_memory_is_near_what_was_measured(layout: Layout, platform: str) -> None:
    limits = {"weights_per_gpu": 0.02, "kv_tokens": 0.05, "kv_pool": 0.05}
    for one in planned(layout.name, platform).distances:
        if one.what in limits:
            assert one.planned == pytest.approx(one.measured, rel=limits[one.what]), one


def test_measured_reasons_of_two_h200_servers() -> None:
    made = planned("h200-tp8-pp2", "h200")
    assert {one.name for one in made.alternatives if one.documented} == {"h200-tp16", "h200-tep16", "h200-tp8-dp2"}
    why = next(one.why for one in made.alternatives if one.name == "h200-tp16")
    assert "437 against 2,202" in why
    asked = planned("h200-tp16", "h200")
    assert any("437 against 2,202" in line for line in asked.warnings)
    peaks = {
        layout.name: one.value
        for layout in ENGINE.layouts
        for one in layout.measured
        if one.what == "peak_throughput" and layout.name.startswith("h200")
    }
    assert peaks == {"h200-tp8-pp2": 2202, "h200-tp16": 437, "h200-tep16": 379, "h200-tp8-dp2": 85}


def test_rocm_switch_by_version() -> None:
    for version in VERSIONS:
        env = planned("mi355x-tp8", "mi355x", version).nodes[0].engine_env
        old = {"VLLM_ROCM_USE_AITER_MOE_SITUV2_A8W4": "1", "AITER_SITUV2_A8W4": "1"}
        new = {"VLLM_ROCM_USE_AITER_MOE_SITUV2": "a8w4"}
        assert {name: value for name, value in env.items() if "SITUV2" in name} == (
            old if version in ("0.29.0", "0.30.0") else new
        )


@pytest.mark.parametrize("draft", ["inferact-dspark", "redhat-dspark"])
def test_a_draft_is_added(draft: str) -> None:
    made = planned("b300-tp8", "b300", draft=draft)
    said = json.loads(flags(made.nodes[0].engine_argv)["--speculative-config"])
    assert said["model"] == made.models[1].path
    assert said["method"] == "dspark"
    assert said["num_speculative_tokens"] == 7


def test_a_draft_with_stages_by_version() -> None:
    with pytest.raises(ConfigError, match="cannot speculate with pipeline stages"):
        planned("h200-tp8-pp2", "h200", "0.32.0", "inferact-dspark")
    made = planned("h200-tp8-pp2", "h200", "0.33.0", "inferact-dspark")
    assert any("nobody is known to have run it" in line for line in made.warnings)


def test_images() -> None:
    assert VERSIONS == ["0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"]
    for version in ENGINE.versions:
        assert isinstance(version.runtime, ContainerRuntime)
        assert set(version.runtime.images) == {"nvidia", "amd"}
        assert version.min_driver["nvidia"].value == 580
        for vendor, image in version.runtime.images.items():
            name = "vllm-openai" if vendor == "nvidia" else "vllm-openai-rocm"
            assert image.ref == f"vllm/{name}:v{version.version}"
            assert bool(image.digest) == (version.version == "0.29.0") == (image.status == "published")


def test_nothing_is_called_verified() -> None:
    verdicts = [version.verdict for version in ENGINE.versions] + [layout.verdict for layout in ENGINE.layouts]
    assert {verdict.status for verdict in verdicts} == {"published", "inferred", "unverified"}
    rtx = [layout.verdict.status for layout, platform in PLACES if platform == "rtx6000d"]
    assert set(rtx) == {"inferred"}


def test_time_to_stop() -> None:
    assert ENGINE.timeouts.gang_stop.value > GANG_GRACE_S
