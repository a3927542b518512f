"""Every argument list that the inventories render for vLLM, in every version, through that release's own parser and,
on simulated NVIDIA GPUs, its full configuration of the real-size model.

make check-engines. The environment is made once (.cache/engines/vllm, minutes); the questions take about a minute a
release. Not asked: drafts beyond the parser (their config.json is not here), ROCm beyond the parser, and what only
workers decide (kernels, memory, names of load formats and tool parsers).
"""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from k3ctl.planner.versions import has
from tests.engines.environments import Environment
from tests.engines.model_config import model_files
from tests.engines.rendered import Rendered, clusters, layouts_of, profiles, rendered

pytestmark = pytest.mark.timeout(3600)
ENVIRONMENT = Environment("vllm")
ENGINE = profiles().engines["vllm"]
RELEASES = [version.version for version in ENGINE.versions]
# What the arithmetic refuses, so that nothing is rendered: documented by others all the same.
REFUSED = {"b200x16/dep16", "gb200x16/rack-dep16", "h100x32/h100-tp32"}
# Deprecated flags that a rule leaves out although the parser still takes them; their source says so.
DEPRECATED = {"--mamba-cache-mode"}
# What a release may warn of: the layout means it, or it is about the stand-in for the model.
ALLOWED = ("Enforce eager set", "has no registered multimodal processor", "Failed to import Triton kernels")


@cache
def everything() -> tuple[Rendered, ...]:
    """All ranks of all plans."""
    return tuple(rendered("vllm"))


@cache
def files() -> dict[str, str]:
    """The stand-in for the model's folder."""
    return model_files(profiles().models["kimi-k3"])


def arguments(one: Rendered) -> list[str]:
    """What follows `vllm serve`: the model comes first."""
    assert one.argv[0].startswith("/")
    return list(one.argv)


def question_id(one: Rendered) -> str:
    """Unique for one rank of one version."""
    return f"{one.version} {one.name}"


def question(one: Rendered) -> dict[str, Any]:
    """Of an AMD server only the parser is asked."""
    gpu = {
        "name": one.gpu.title,
        "compute": one.gpu.compute,
        "memory": one.gpu.memory_bytes.value,
        "count": one.platform.gpus_per_node,
    }
    return {
        "id": question_id(one),
        "argv": arguments(one),
        "env": one.env,
        "gpu": gpu if one.gpu.vendor == "nvidia" else None,
        "files": files(),
    }


def controls(version: str) -> list[dict[str, Any]]:
    """Argument lists that must be refused: a harness that takes everything proves nothing."""
    base = next(one for one in everything() if one.version == version and one.name == "h200x16/h200-tp8-pp2/none/0")
    worker = next(one for one in everything() if one.version == version and one.name == "h200x16/h200-tp8-dp2/none/1")

    def but(one: Rendered, name: str, old: str, new: str, **more: str) -> dict[str, Any]:
        argv = [new if word == old else word for word in arguments(one)]
        assert argv != arguments(one) or more
        return {**question(one), "id": name, "argv": [word for word in argv if word], "env": {**one.env, **more}}

    return [
        but(base, "control unknown flag", "--max-num-seqs=256", "--max-num-sequences=256"),
        but(base, "control bad choice", "--moe-backend=marlin", "--moe-backend=marvin"),
        but(base, "control bad attention", "--attention-backend=FLASHMLA", "--attention-backend=FLASHY"),
        but(base, "control unknown variable", "", "", VLLM_RPC_TIMEOUT="600000"),
        but(base, "control heads", "--tensor-parallel-size=8", "--tensor-parallel-size=5"),
        but(base, "control length", "--max-model-len=32768", "--max-model-len=2097152"),
        but(base, "control nodes", "--nnodes=2", ""),
        but(worker, "control worker with an API", "--headless", ""),
    ]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Release -> its options, variables and answers."""
    ENVIRONMENT.make()
    folder = tmp_path_factory.mktemp("vllm")
    found = {}
    for release in RELEASES:
        questions = [question(one) for one in everything() if one.version == release]
        found[release] = _ask(release, [*questions, *controls(release)], folder)
    return found


def _ask(release: str, questions: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    source, target = folder / f"{release}.json", folder / f"{release}-answers.json"
    source.write_text(json.dumps(questions))
    script = str(Path(__file__).parent / "vllm/ask.py")
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("VLLM_")},
        "PYTHONPATH": str(ENVIRONMENT.source(release)),
        "VLLM_CACHE_ROOT": str(folder / f"cache-{release}"),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TMPDIR": str(folder),
    }
    done = subprocess.run(
        ["nice", str(ENVIRONMENT.python), script, str(source), str(target)],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers: dict[str, Any] = json.loads(target.read_text())
    return answers


def of_plans(asked: dict[str, dict[str, Any]], release: str) -> dict[str, dict[str, Any]]:
    """The answers without the controls."""
    return {name: answer for name, answer in asked[release]["answers"].items() if not name.startswith("control")}


def test_every_layout_of_every_inventory_is_among_them() -> None:
    there = {"/".join(one.name.split("/")[:2]) for one in everything()}
    wanted = {f"{cluster.name}/{layout}" for cluster in clusters() for layout in layouts_of(cluster, "vllm")}
    assert there == wanted - REFUSED
    assert wanted >= REFUSED
    assert {one.version for one in everything()} == set(RELEASES)
    assert {one.draft for one in everything()} == {"", "inferact-dspark", "redhat-dspark"}


@pytest.mark.parametrize("release", RELEASES)
def test_parser_and_configuration_take_every_argument_list(release: str, asked: dict[str, dict[str, Any]]) -> None:
    answers = of_plans(asked, release)
    assert len(answers) > 150
    assert {name: answer["error"] for name, answer in answers.items() if answer["error"]} == {}


@pytest.mark.parametrize("release", RELEASES)
def test_every_value_arrives(release: str, asked: dict[str, dict[str, Any]]) -> None:
    for name, answer in of_plans(asked, release).items():
        assert len(answer["given"]) > 12, name
        for flag, (given, taken) in answer["given"].items():
            assert same(given, taken), f"{name}: {flag} {given} became {taken}"


def same(given: str, taken: str) -> bool:
    """Equal as text or as numbers."""
    if given == taken:
        return True
    try:
        return float(given) == float(taken)
    except ValueError:
        return False


@pytest.mark.parametrize("release", RELEASES)
def test_nothing_is_warned_of(release: str, asked: dict[str, dict[str, Any]]) -> None:
    """Deprecated flags, flags without effect and unknown variables are warnings of the engine's."""
    said = {line for answer in of_plans(asked, release).values() for line in answer["warnings"]}
    assert {line for line in said if not any(known in line for known in ALLOWED)} == set()


@pytest.mark.parametrize("release", RELEASES)
def test_the_engine_decides_as_the_plan_says(release: str, asked: dict[str, dict[str, Any]]) -> None:
    layouts = {layout.name: layout for layout in ENGINE.layouts}
    configured = 0
    for one in everything():
        if one.version != release or one.gpu.vendor != "nvidia":
            continue
        _inventory, name, _draft, rank = one.name.split("/")
        layout, config = layouts[name], asked[release]["answers"][question_id(one)]["config"]
        tensor = layout.tp if isinstance(layout.tp, int) else 32
        local = max(1, one.platform.gpus_per_node // (tensor * layout.pp)) if layout.dp > 1 else 1
        wanted = {
            "tensor": tensor,
            "pipeline": layout.pp,
            "data": layout.dp,
            "decode_context": layout.dcp,
            "experts": layout.ep,
            "hybrid": False,
            "external": False,
            "data_local": local,
            "data_rank": int(rank) * local if layout.dp > 1 else 0,
            "quantization": "mxfp4",
            "executor": "mp" if tensor * layout.pp * layout.dp > 1 else "uni",
            "max_model_len": layout.max_model_len,
            "max_batched": layout.max_batched,
        }
        assert {key: config[key] for key in wanted} == wanted, one.name
        assert layout.memory is not None
        assert config["prefix_caching"] == layout.memory.prefix_caching
        assert config["cache_dtype"] in (("fp8",) if layout.memory.kv == "fp8" else ("auto", "bfloat16"))
        assert config["max_num_seqs"] <= layout.max_num_seqs
        configured += 1
    assert configured > 100


@pytest.mark.parametrize("release", RELEASES)
def test_what_is_wrong_is_refused(release: str, asked: dict[str, dict[str, Any]]) -> None:
    answers = asked[release]["answers"]
    expected = {
        "control unknown flag": "max-num-sequences",
        "control bad choice": "marvin",
        "control bad attention": "FLASHY",
        "control unknown variable": "VLLM_RPC_TIMEOUT",
        "control heads": "attention heads (96) must be divisible",
        "control length": "2097152",
        "control nodes": "nnodes",
    }
    for name, word in expected.items():
        assert word in answers[name]["error"], f"{name}: {answers[name]}"
    # Not refused on this rank: it would serve an API of its own, and the head refuse it.
    alone = answers["control worker with an API"]
    assert alone["error"] or alone["config"]["external"]


@pytest.mark.parametrize("release", RELEASES)
def test_rules_say_what_the_release_has(release: str, asked: dict[str, dict[str, Any]]) -> None:
    options, variables = set(asked[release]["options"]), set(asked[release]["variables"])
    for change in ENGINE.flags:
        there = change.name in options
        if has(release, change):
            assert there, f"{release} has no {change.name}"
        elif there:
            assert change.name in DEPRECATED, f"{release} has {change.name} although the rule says it has not"
            assert "deprecated" in change.source
    for change in ENGINE.variables:
        if change.name.startswith("VLLM_"):
            assert has(release, change) == (change.name in variables), f"{release}: {change.name}"
    for change in (*ENGINE.flags, *ENGINE.variables):
        instead = change.becomes.partition("=")[0]
        if instead and not has(release, change):
            assert instead in options | variables, f"{release} has no {instead} either"


@pytest.mark.parametrize("release", RELEASES)
def test_every_variable_is_the_releases(release: str, asked: dict[str, dict[str, Any]]) -> None:
    there = set(asked[release]["variables"])
    given = {name for one in everything() if one.version == release for name in one.env if name.startswith("VLLM_")}
    assert len(given) > 8
    assert given - there == set()
