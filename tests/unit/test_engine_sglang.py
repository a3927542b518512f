"""SGLang's profile as data: what its layouts render for every inventory and version, without SGLang itself.

make check-engines asks the releases' own parsers; the choices here are those that all of them share.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from k3ctl.errors import ConfigError
from k3ctl.launch.engines import traits_of
from k3ctl.launch.render import GANG_GRACE_S
from k3ctl.node.attemptlog import AttemptLog
from k3ctl.node.rank import hand_over_key
from k3ctl.plan import Plan
from k3ctl.planner import make_plan
from k3ctl.planner.arguments import LAUNCHER_VARIABLES
from k3ctl.planner.versions import has
from k3ctl.profiles.types import ContainerRuntime, Layout
from tests.unit.plan_fixtures import cluster, packaged

ENGINE = packaged().engines["sglang"]
VERSIONS = [version.version for version in ENGINE.versions]
PLACES = [(layout, platform) for layout in ENGINE.layouts for platform in layout.platforms]
IDS = [f"{layout.name}-{platform}" for layout, platform in PLACES]
CASES = [(layout, platform, version) for layout, platform in PLACES for version in VERSIONS]
CASE_IDS = [f"{layout.name}-{platform}-{version}" for layout, platform, version in CASES]
# Platform and nodes -> layouts, the preferred one first; the inventories' places are all among them.
DOCUMENTED = {
    ("b300", 1): ["b300-tp8-dcp8", "b300-tp8"],
    ("b300", 2): ["b300-peak"],
    ("gb300", 2): ["gb300-tp8-dcp8", "gb300-tp8"],
    ("gb300", 4): ["gb300-peak"],
    ("gb200", 4): ["gb200-tp16-dcp16", "gb200-tp16", "gb200-peak"],
    ("b200", 2): ["b200-tp8-pp2", "b200-tp16-ep16", "b200-tp8-pp2-dcp8"],
    ("h200", 2): ["h200-tp16-ep16"],
    ("h200", 4): ["h200-tp32-ep32", "h200-tp32-ep32-dspark"],
    ("h100", 4): ["h100-tp32-ep32", "h100-tp32-ep32-lazy"],
    ("mi355x", 1): ["mi355x-tp8"],
    ("mi350x", 1): ["mi355x-tp8"],
}
# Closed lists of 0.5.17 to 0.5.23, as far as a layout may use them.
CHOICES = {
    "--moe-runner-backend": {"marlin", "deep_gemm", "flashinfer_mxfp4", "flashinfer_trtllm"},
    "--moe-a2a-backend": {"megamoe"},
    "--attention-backend": {"triton", "trtllm_mla", "cutedsl_mla"},
    "--decode-attention-backend": {"flashmla", "cutedsl_mla", "trtllm_mla"},
    "--kv-cache-dtype": {"fp8_e4m3", "bf16", "auto"},
    "--mamba-ssm-dtype": {"float32", "bfloat16"},
    "--mamba-radix-cache-strategy": {"extra_buffer", "extra_buffer_lazy", "no_buffer"},
    "--dtype": {"bfloat16"},
    "--reasoning-parser": {"kimi_k3"},
    "--tool-call-parser": {"kimi_k3"},
    "--speculative-algorithm": {"DSPARK"},
    "--schedule-policy": {"lpm"},
}


@cache
def planned(layout: str, platform: str, version: str = "", draft: str = "", kv: str = "") -> Plan:
    """The plan of one layout on the nodes that it is for."""
    found = layout_of(layout)
    strategy = {"layout": layout, **({"draft": draft} if draft else {}), **({"kv_cache": kv} if kv else {})}
    spec = {"engine": "sglang", "model": found.models[0], "strategy": strategy}
    if version:
        spec["engine_version"] = version
    return make_plan(cluster(platform, found.nodes[0], **spec), packaged())


def layout_of(name: str) -> Layout:
    """A layout of the profile."""
    return next(layout for layout in ENGINE.layouts if layout.name == name)


def flags(argv: tuple[str, ...]) -> dict[str, str]:
    """Flag -> value, empty for switches."""
    return {word.partition("=")[0]: word.partition("=")[2] for word in argv if word.startswith("--")}


def test_places() -> None:
    found: dict[tuple[str, int], list[Layout]] = {}
    for layout, platform in PLACES:
        if "kimi-k3" in layout.models:
            for nodes in layout.nodes:
                found.setdefault((platform, nodes), []).append(layout)
    ordered = {place: sorted(layouts, key=lambda one: one.preference) for place, layouts in found.items()}
    assert {place: [one.name for one in layouts] for place, layouts in ordered.items()} == DOCUMENTED
    assert all([one.preference for one in layouts] == [*range(1, len(layouts) + 1)] for layouts in ordered.values())


@pytest.mark.parametrize(("platform", "nodes"), DOCUMENTED)
def test_the_preferred_one_is_planned(platform: str, nodes: int) -> None:
    made = make_plan(cluster(platform, nodes, engine="sglang"), packaged())
    assert made.layout == DOCUMENTED[platform, nodes][0]
    assert made.engine_version == ENGINE.default_version


def test_nobody_documents_it_on_rtx_6000d() -> None:
    with pytest.raises(ConfigError, match="no layout for kimi-k3 on rtx6000d"):
        make_plan(cluster("rtx6000d", 2, engine="sglang"), packaged())


@pytest.mark.parametrize(("layout", "platform", "version"), CASES, ids=CASE_IDS)
def test_every_rank_in_every_version(layout: Layout, platform: str, version: str) -> None:
    made = planned(layout.name, platform, version)
    without = {change.name for change in (*ENGINE.flags, *ENGINE.variables) if not has(version, change)}
    for node in made.nodes:
        names = [word.partition("=")[0] for word in node.engine_argv if word.startswith("--")]
        assert [name for name, count in Counter(names).items() if count > 1] == []
        assert without.isdisjoint(names)
        assert without.isdisjoint(node.engine_env)
        assert set(LAUNCHER_VARIABLES).isdisjoint(node.engine_env)
        assert node.engine_argv[:2] == ("sglang", "serve")
        assert all(word.startswith("--") for word in node.engine_argv[2:])


@pytest.mark.parametrize(("layout", "platform"), PLACES, ids=IDS)
def test_choices_are_closed(layout: Layout, platform: str) -> None:
    for node in planned(layout.name, platform).nodes:
        for flag, value in flags(node.engine_argv).items():
            assert value in CHOICES.get(flag, {value}), f"{flag}={value}"


@pytest.mark.parametrize(("layout", "platform"), PLACES, ids=IDS)
def test_ranks_differ_by_their_place_only(layout: Layout, platform: str) -> None:
    made = planned(layout.name, platform)
    head = made.nodes[0]
    for node in made.nodes:
        given, first = flags(node.engine_argv), flags(head.engine_argv)
        differing = {flag for flag in given.keys() | first.keys() if given.get(flag) != first.get(flag)}
        assert differing <= {"--node-rank", "--host"}
        assert node.engine_env == {**head.engine_env, "SGLANG_HOST_IP": node.address}
        assert given["--host"] == ("0.0.0.0" if node.rank == 0 else "127.0.0.1")
        if len(made.nodes) > 1:
            assert (given["--nnodes"], given["--node-rank"]) == (str(len(made.nodes)), str(node.rank))
            assert given["--dist-init-addr"] == f"{head.address}:{made.master_port}"
            assert "--nccl-port" not in given
        else:
            assert given["--nccl-port"] == str(made.master_port)
            assert "--dist-init-addr" not in given


@pytest.mark.parametrize(("layout", "platform"), PLACES, ids=IDS)
def test_no_limit_of_time_is_left_at_its_default(layout: Layout, platform: str) -> None:
    made = planned(layout.name, platform)
    ready = str(round(made.timeouts.engine_ready))
    for node in made.nodes:
        given = flags(node.engine_argv)
        assert (given["--watchdog-timeout"], given["--dist-timeout"]) == (ready, ready)
    assert int(ready) >= 3600
    assert made.timeouts.gang_stop >= 5 + 15 + 60


@pytest.mark.parametrize(("layout", "platform"), PLACES, ids=IDS)
def test_ports(layout: Layout, platform: str) -> None:
    made = planned(layout.name, platform)
    per_node = Counter((rank, port.port) for port in made.ports for rank in port.ranks)
    assert [place for place, count in per_node.items() if count > 1] == []
    api = [port for port in made.ports if port.port == made.endpoint_port]
    assert sorted(rank for port in api for rank in port.ranks) == [node.rank for node in made.nodes]
    assert [port.ranks for port in api if port.reached_by == "clients"] == [(0,)]
    fixed = {port.port - made.master_port for port in made.ports if port.purpose not in ("API", "rendezvous")}
    several, groups = len(made.nodes) > 1, made.data_parallel > 1
    assert fixed - {made.endpoint_port - made.master_port} == ({0, 1, 2, 3, 4, 5, 6, 13} if several and groups else {0})


@pytest.mark.parametrize("version", VERSIONS)
def test_attention_in_groups_by_version(version: str) -> None:
    given = flags(planned("gb300-peak", "gb300", version).nodes[0].engine_argv)
    old = {"--dp-size": "2", "--enable-dp-attention": ""}
    new = {"--attn-dp-size": "2"}
    names = old.keys() | new.keys()
    assert {flag: value for flag, value in given.items() if flag in names} == (
        new if version in ("0.5.22", "0.5.23") else old
    )
    assert (given["--tp-size"], given["--ep-size"]) == ("16", "16")


def test_what_older_versions_do_not_have_is_said() -> None:
    assert planned("gb300-peak", "gb300", "0.5.23").notes[0].startswith("sglang 0.5.23 has no --enable-dp-attention")
    old = planned("mi355x-tp8", "mi355x", "0.5.17")
    assert "SGLANG_MLA_DECODE_TUNE" not in old.nodes[0].engine_env
    assert [note for note in old.notes if "SGLANG_MLA_DECODE_TUNE: left out" in note]
    assert planned("mi355x-tp8", "mi355x").nodes[0].engine_env["SGLANG_MLA_DECODE_TUNE"] == "1"


@pytest.mark.parametrize(
    ("layout", "platform"),
    [("b300-tp8", "b300"), ("b300-tp8-dcp8", "b300"), ("b200-tp16-ep16", "b200"), ("gb300-peak", "gb300")],
)
def test_a_draft_is_added_where_one_stage_runs(layout: str, platform: str) -> None:
    made = planned(layout, platform, draft="radixark-dspark")
    given = flags(made.nodes[0].engine_argv)
    assert given["--speculative-draft-model-path"] == made.models[1].path
    assert made.models[1].repo == "RadixArk/Kimi-K3-DSpark"
    assert given["--speculative-dspark-block-size"] == "7"
    assert "--enable-linear-replayssm-spec" in given


def test_no_draft_with_stages() -> None:
    with pytest.raises(ConfigError, match="cannot speculate with pipeline stages"):
        planned("b200-tp8-pp2", "b200", draft="radixark-dspark")
    made = make_plan(
        cluster("b200", 2, engine="sglang", strategy={"draft": "radixark-dspark", "pipeline_parallel": 1}), packaged()
    )
    assert made.layout == "b200-tp16-ep16"


def test_the_cache_type_that_cluster_yml_asks_for() -> None:
    plain, asked = planned("h200-tp16-ep16", "h200"), planned("h200-tp16-ep16", "h200", kv="fp8")
    assert flags(asked.nodes[0].engine_argv)["--kv-cache-dtype"] == "fp8_e4m3"
    assert plain.memory is not None
    assert asked.memory is not None
    assert asked.memory.tokens == pytest.approx(2 * plain.memory.tokens, rel=1e-4)


def test_experts_are_never_left_out_on_80_gb() -> None:
    assert all(layout.ep for layout, platform in PLACES if platform in ("h100", "h200"))
    made = planned("h100-tp32-ep32", "h100")
    assert made.memory is not None
    assert made.memory.weights_bytes / 2**30 == pytest.approx(56.6, abs=0.1)


def test_images() -> None:
    for version in ENGINE.versions:
        assert isinstance(version.runtime, ContainerRuntime)
        assert set(version.runtime.images) == {"nvidia", "amd"}
        assert version.min_driver["nvidia"].value == 580
        for image in version.runtime.images.values():
            assert re.fullmatch(r"lmsysorg/sglang(-rocm)?:(kimi-k3|v0\.5\.\d\d[-a-z0-9]*)", image.ref)
            assert image.digest or image.status == "inferred" or "-rocm" in image.ref
    default = next(version for version in ENGINE.versions if version.version == ENGINE.default_version)
    assert isinstance(default.runtime, ContainerRuntime)
    assert default.runtime.images["nvidia"].digest


def test_nothing_is_called_verified() -> None:
    verdicts = [version.verdict for version in ENGINE.versions] + [layout.verdict for layout in ENGINE.layouts]
    assert {verdict.status for verdict in verdicts} == {"published", "inferred", "unverified"}
    for layout in ENGINE.layouts:
        if layout.verdict.status == "published":
            assert layout.measured, f"{layout.name} says who ran it and has no figure"


def test_secrets_and_traps() -> None:
    for layout, platform in PLACES:
        for node in planned(layout.name, platform).nodes:
            assert not [word for word in node.engine_argv if "key" in word]
            assert "SGLANG_PORT" not in node.engine_env
            assert node.engine_env["HF_HUB_OFFLINE"] == "1"


def test_the_key_never_reaches_the_log(tmp_path: Path) -> None:
    environment = {"K3CTL_API_KEY": "top-secret-key", "OTHER": "1"}
    file = {"path": str(tmp_path / "api_key.yml"), "variable": "K3CTL_API_KEY", "key": "api-key"}
    log = AttemptLog(str(tmp_path / "log"), 3, 10_000)
    log.secrets = hand_over_key(file, environment)
    assert environment == {"OTHER": "1"}
    log.write("O", "server_args={'api_key': 'top-secret-key', 'port': 8000}")
    log.write("O", "ready")
    log.close()
    text = (tmp_path / "log" / log.name).read_text()
    assert "top-secret-key" not in text
    assert "'api_key': '***', 'port': 8000" in text
    assert log.recent == ["server_args={'api_key': '***', 'port': 8000}", "ready"]
    assert hand_over_key({}, environment) == []


def test_sglang_has_time_to_end_in_order() -> None:
    traits = traits_of("sglang")
    assert 5 + 15 < traits.grace_s < GANG_GRACE_S
    assert traits_of("vllm").grace_s == 5.0
    assert all(title.startswith("sglang::") for title in traits.worker_titles)
    assert all(node.engine_env["SGL_FORCE_SHUTDOWN"] == "1" for node in planned("gb300-peak", "gb300").nodes)
