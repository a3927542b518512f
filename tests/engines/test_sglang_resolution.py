"""What SGLang itself makes of the rendered argument lists on simulated NVIDIA GPUs, against what the plan assumes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from k3ctl.planner.versions import at_least
from k3ctl.profiles.types import Layout
from tests.engines.model_config import model_config
from tests.engines.rendered import Rendered, profiles
from tests.engines.sglang_questions import ENGINE, ENVIRONMENT, arguments, ask, everything, question_id

pytestmark = pytest.mark.timeout(1800)
# Releases that say what kind of machine this is in one place, so that it can be said for them: the default and the
# newest.
RELEASES = sorted({ENGINE.default_version, ENGINE.versions[-1].version})
MIB = 2**20


def chosen(release: str) -> list[Rendered]:
    """Head and first worker of every layout on NVIDIA, without the drafts that are added to it."""
    return [
        one
        for one in everything()
        if one.version == release
        and one.gpu.vendor == "nvidia"
        and one.name.split("/")[2] == "none"
        and one.name.rsplit("/", 1)[1] in ("0", "1")
    ]


def layout_of(one: Rendered) -> Layout:
    """The profile's layout."""
    return next(layout for layout in ENGINE.layouts if layout.name == one.name.split("/")[1])


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Question -> what the release decided, or its error."""
    ENVIRONMENT.make()
    folder: Path = tmp_path_factory.mktemp("sglang")
    config = model_config(profiles().models["kimi-k3"])
    found: dict[str, dict[str, Any]] = {}
    for release in RELEASES:
        questions = [
            {
                "id": question_id(one),
                "argv": arguments(one),
                "simulate": {
                    "compute": one.gpu.compute,
                    "memory_mib": one.gpu.memory_bytes.value // MIB,
                    "config": config,
                },
            }
            for one in chosen(release)
        ]
        found |= ask(release, questions, folder)["answers"]
    return found


def test_the_releases_can_be_asked() -> None:
    assert all(at_least(release, "0.5.19") for release in RELEASES)
    assert len(chosen(RELEASES[0])) > 20


@pytest.mark.parametrize("release", RELEASES)
def test_nothing_is_refused(release: str, configs: dict[str, dict[str, Any]]) -> None:
    answers = {name: answer["error"] for name, answer in configs.items() if name.startswith(release + " ")}
    assert answers
    assert {name: error for name, error in answers.items() if error} == {}


@pytest.mark.parametrize("release", RELEASES)
def test_it_decides_what_the_plan_assumes(release: str, configs: dict[str, dict[str, Any]]) -> None:
    for one in chosen(release):
        config, layout = configs[question_id(one)]["config"], layout_of(one)
        memory = layout.memory
        assert memory is not None
        ranks = int(layout.tp) * layout.dp
        wanted = {
            "tp_size": ranks,
            "pp_size": layout.pp,
            "ep_size": ranks if layout.ep else 1,
            "dcp_size": layout.dcp,
            "context_length": layout.max_model_len,
            "mem_fraction_static": memory.utilization,
            "disable_radix_cache": not memory.prefix_caching,
            "mamba_radix_cache_strategy": memory.cache_strategy,
            "disable_overlap_schedule": layout.pp > 1,
            "page_size": 64,
        }
        assert {name: config[name] for name in wanted} == wanted, one.name
        assert (config["mamba_full_memory_ratio"] or 0.9) == memory.state_ratio, one.name
        assert (config["mamba_ssm_dtype"] == "bfloat16") == (memory.state == "bf16"), one.name
        assert (config["kv_cache_dtype"] == "fp8_e4m3") == (memory.kv == "fp8"), one.name
        groups = config["attn_dp_size"] if config["attn_dp_size"] is not None else config["dp_size"]
        assert groups == layout.dp, one.name


@pytest.mark.parametrize("release", RELEASES)
def test_back_ends_are_those_of_the_gpu(release: str, configs: dict[str, dict[str, Any]]) -> None:
    for one in chosen(release):
        config, layout = configs[question_id(one)]["config"], layout_of(one)
        decode = config["decode_attention_backend"] or config["attention_backend"]
        if one.gpu.compute.startswith("9."):
            assert (decode, config["moe_runner_backend"]) == ("flashmla", "marlin"), one.name
            assert config["prefill_attention_backend"] in ("fa3", None), one.name
        elif layout.dcp > 1:
            assert decode == "cutedsl_mla", one.name
        else:
            assert decode == "trtllm_mla", one.name


def test_questions_are_json() -> None:
    assert json.loads(json.dumps(arguments(everything()[0]))) == arguments(everything()[0])
