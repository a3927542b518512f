"""The packaged profiles: all load, every number says where it is from, and published sizes follow from them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from k3ctl.cluster import ModelFacts
from k3ctl.errors import ConfigError
from k3ctl.memory import weights
from k3ctl.memory.architecture import Layout
from k3ctl.profiles.architecture import architecture
from k3ctl.profiles.load import KINDS, PACKAGED, load
from k3ctl.profiles.supplied import supplied
from k3ctl.profiles.types import Amount, Model, Profiles, Unknown
from k3ctl.schemas import file_of

MIB = 2**20
GIB = 2**30
OWN = [file for kind in ("gpus", "platforms", "models") for file in sorted((PACKAGED / kind).glob("*.yml"))]
REPORTED_MIB = {
    "h100-80": 81559,
    "h200": 143771,
    "h20-3e": 143771,
    "b200": 183359,
    "b300": 275040,
    "gb200": 189471,
    "gb300": 284208,
    "rtx-6000d": 85651,
    "rtx-pro-6000": 97887,
    "mi355x": 294896,
    "mi350x": 294896,
    "mi325x": 262128,
    "mi300x": 196592,
    "a100-80": 81920,
}
PLATFORMS = {
    "h100",
    "h200",
    "h20-3e",
    "b200",
    "b300",
    "gb200",
    "gb300",
    "rtx6000d",
    "rtxpro6000",
    "mi355x",
    "mi350x",
    "mi325x",
    "mi300x",
    "a100",
    "lab",
}


@pytest.fixture(scope="module")
def profiles() -> Profiles:
    return load()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The packaged profiles, copied."""
    for kind in KINDS:
        shutil.copytree(PACKAGED / kind, tmp_path / kind)
    return tmp_path


def amounts(value: Any, path: str = "") -> Iterator[tuple[str, Amount]]:
    """Every Amount of a profile with its path."""
    if isinstance(value, Amount):
        yield path, value
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from amounts(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, dict | tuple):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from amounts(item, f"{path}.{key}")


def test_all_are_there(profiles: Profiles) -> None:
    assert set(profiles.gpus) == {*REPORTED_MIB, "simulated"}
    assert set(profiles.platforms) == PLATFORMS
    assert {platform.gpu for platform in profiles.platforms.values()} == set(profiles.gpus), "a GPU without a server"
    assert "kimi-k3" in profiles.models


@pytest.mark.parametrize("file", OWN, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_every_file_names_its_schema(file: Path) -> None:
    first = file.read_text(encoding="utf-8").splitlines()[0]
    kind = file.parent.name.removesuffix("s")
    path = first.removeprefix("# yaml-language-server: $schema=")
    assert (file.parent / path).resolve() == file_of(kind)


def test_every_number_has_a_source(profiles: Profiles) -> None:
    found = [item for kind in ("gpus", "platforms", "models") for item in amounts(getattr(profiles, kind), kind)]
    assert len(found) > 150
    for path, amount in found:
        assert amount.value > 0, path
        assert re.search(r"[A-Za-z]{3}", amount.source), path
        if amount.status == "simulated":
            assert path.startswith(("gpus.simulated.", "platforms.lab.")), path


def test_nothing_is_verified_without_a_name(profiles: Profiles) -> None:
    for kind in (profiles.gpus, profiles.platforms, profiles.models):
        for profile in kind.values():
            if profile.verdict.status == "verified":
                assert re.search(r"/|PR|vLLM|blog|lab", profile.verdict.source), profile.name


@pytest.mark.parametrize(("name", "mib"), REPORTED_MIB.items())
def test_memory_is_what_the_driver_reports(profiles: Profiles, name: str, mib: int) -> None:
    assert profiles.gpus[name].memory_bytes.value == mib * MIB


def test_names_of_gpus_tell_them_apart(profiles: Profiles) -> None:
    names = [name for gpu in profiles.gpus.values() for name in gpu.reported_names]
    ids = [pci for gpu in profiles.gpus.values() for pci in gpu.pci_ids]
    assert len(set(names)) == len(names)
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"(10de|1002):[0-9a-f]{4}", pci) for pci in ids)


def test_refused_with_its_reason(profiles: Profiles) -> None:
    refused = {gpu.name for gpu in profiles.gpus.values() if gpu.refused}
    assert refused == {"a100-80"}
    assert "8.0" in profiles.gpus["a100-80"].refused


def test_servers_are_plausible(profiles: Profiles) -> None:
    for platform in profiles.platforms.values():
        gpu = profiles.gpus[platform.gpu]
        if gpu.vendor == "simulated":
            continue
        assert platform.power_watts is not None
        assert gpu.power_watts is not None
        assert platform.power_watts.value > platform.gpus_per_node * gpu.power_watts.value
        assert platform.power_watts.value < 1.6 * platform.gpus_per_node * gpu.power_watts.value + 4000
        assert platform.link_domain >= platform.gpus_per_node or gpu.links is None
        assert platform.fabric_manager == (platform.nvswitch and gpu.vendor == "nvidia")
        assert platform.imex == (platform.link_domain == 72)
        assert platform.max_nodes * platform.gpus_per_node == 64
        for collective in platform.collectives:
            assert collective.floor.value < collective.expected.value
            assert collective.gpus <= platform.max_nodes * platform.gpus_per_node


# models


def test_published_sizes_follow_from_the_architecture(profiles: Profiles) -> None:
    with_both = [model for model in profiles.models.values() if model.architecture and model.shard_bytes]
    assert {model.name for model in with_both} >= {"kimi-k3", "kimi-k3-nvfp4", "kimi-k3-fp8-block"}
    for model in with_both:
        assert model.shard_bytes is not None
        made = weights.checkpoint(architecture(model))
        assert made == pytest.approx(model.shard_bytes.value, rel=2e-4), model.name
        assert isinstance(model.bytes, Amount)
        assert model.bytes.value >= model.shard_bytes.value


def test_formats_change_the_weights_of_a_gpu(profiles: Profiles) -> None:
    def tp8(name: str) -> float:
        return weights.worst(weights.per_gpu(architecture(profiles.models[name]), Layout(8))).total / GIB

    assert tp8("kimi-k3") == pytest.approx(191.9, rel=0.001)
    assert tp8("kimi-k3-nvfp4") == pytest.approx(197.2, rel=0.001)
    assert tp8("kimi-k3-nvfp4-redhat") == pytest.approx(201.8, rel=0.001)
    assert tp8("kimi-k3-fp8-block") == pytest.approx(334.6, rel=0.001)


def test_pins_are_among_the_known_commits(profiles: Profiles) -> None:
    for model in profiles.models.values():
        if model.revisions:
            assert model.revision in model.revisions, model.name
    small = profiles.models["kimi-k3-0.40b-mxfp4"].revision
    assert small not in profiles.models["kimi-k3"].revisions, "the commit of another repository"


def test_only_a_draft_of_mla_layers_joins_the_cache_of_the_target(profiles: Profiles) -> None:
    k3 = profiles.models["kimi-k3"]
    layers = {draft.name: architecture(k3, draft).draft_layers for draft in k3.drafts}
    assert layers == {"inferact-dspark": 5, "redhat-dspark": 0, "radixark-dspark": 0}
    assert {family for draft in k3.drafts for family in draft.families} == {"vllm", "sglang"}


def test_unknown_facts_name_a_key_that_cluster_yml_has(profiles: Profiles) -> None:
    keys = {f"model_facts.{name}" for name in ModelFacts.model_fields} | {"weights.revision"}
    unknown = [
        (model.name, name, getattr(model, name))
        for model in profiles.models.values()
        for name in Model.model_fields
        if isinstance(getattr(model, name), Unknown)
    ]
    assert ("kimi-k3.1-pro", "bytes") in [item[:2] for item in unknown]
    for _, _, fact in unknown:
        assert fact.supply in keys


def test_a_user_supplies_what_nobody_published(profiles: Profiles) -> None:
    pro = profiles.models["kimi-k3.1-pro"]
    with pytest.raises(ConfigError, match="its memory cannot be planned"):
        architecture(pro)
    facts = ModelFacts(bytes=1_700_000_000_000, shards=104, heads=96, architecture="kimi-k3")
    full = supplied(pro, facts, profiles.models, "inv/cluster.yml")
    assert full.bytes == Amount(
        value=1_700_000_000_000, source="model_facts.bytes of inv/cluster.yml", status="unverified"
    )
    assert full.architecture == profiles.models["kimi-k3"].architecture
    assert architecture(full).layers == 93
    assert supplied(pro, ModelFacts(), profiles.models) == pro


def test_a_user_cannot_change_what_is_known(profiles: Profiles) -> None:
    k3 = profiles.models["kimi-k3"]
    assert supplied(k3, ModelFacts(shards=96, architecture="kimi-k3"), profiles.models) == k3
    with pytest.raises(ConfigError) as caught:
        supplied(k3, ModelFacts(shards=97, heads=64, architecture="kimi-k3-nvfp4"), profiles.models, "c.yml")
    problems = caught.value.problems
    assert [problem.key for problem in problems] == [
        f"model_facts.{key}" for key in ("shards", "heads", "architecture")
    ]
    assert "c.yml and the model's profile" in problems[0].what
    assert (problems[0].found, problems[0].expected.split()[0]) == ("97", "96")


def test_an_architecture_that_is_not_there(profiles: Profiles) -> None:
    with pytest.raises(ConfigError) as caught:
        supplied(profiles.models["kimi-k3.1-pro"], ModelFacts(architecture="kimi-k2"), profiles.models)
    (problem,) = caught.value.problems
    assert problem.found == "kimi-k2"
    assert problem.fix == "did you mean `kimi-k3`?"


# files


def test_a_model_and_a_platform_are_files_alone(tree: Path) -> None:
    model = (tree / "models/kimi-k3.yml").read_text().replace("name: kimi-k3\n", "name: kimi-k4\n")
    (tree / "models/kimi-k4.yml").write_text(model.replace("heads: 96\n", "heads: 128\n"))
    gpu = (tree / "gpus/b300.yml").read_text().replace("name: b300\n", "name: r200\n")
    (tree / "gpus/r200.yml").write_text(gpu)
    server = (tree / "platforms/b300.yml").read_text().replace("name: b300\n", "name: vr200\n")
    (tree / "platforms/vr200.yml").write_text(server.replace("gpu: b300\n", "gpu: r200\n"))
    profiles = load(tree)
    assert architecture(profiles.models["kimi-k4"]).heads == 128
    assert profiles.gpus[profiles.platforms["vr200"].gpu].name == "r200"


@pytest.mark.parametrize(
    ("path", "old", "new", "key", "what"),
    [
        ("gpus/h200.yml", "vendor: nvidia", "vendor: acme", "vendor", "Input should be"),
        ("gpus/h200.yml", "formats: [fp8", "formats: [fp7", "formats[0]", "Input should be"),
        ("gpus/h200.yml", "  status: verified", "  status: sure", "memory_bytes.status", "Input should be"),
        ("gpus/h200.yml", "value: 150754820096", "value: '150754820096'", "memory_bytes.value", "valid integer"),
        ("gpus/h200.yml", "title:", "colour: red\ntitle:", "colour", "Extra inputs"),
        ("gpus/h200.yml", "vendor: nvidia", "vendor: nvidia\nvendor: amd", "vendor", "twice"),
        ("gpus/h200.yml", "name: h200", "name: h201", "", "named differently"),
        ("platforms/h200.yml", "gpu: h200", "gpu: h20", "gpu", "no GPU profile"),
        ("platforms/h200.yml", "kind: infiniband or roce", "kind: token ring", "nics.kind", "Input should be"),
        (
            "models/kimi-k3.yml",
            "f831ab66814297da540d832a5235f8e904f29d06\nrevisions",
            "main\nrevisions",
            "revision",
            "",
        ),
        ("models/kimi-k3.yml", "format: mxfp4", "format: int3", "format", "Input should be"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tree: Path, path: str, old: str, new: str, key: str, what: str) -> None:
    text = (tree / path).read_text()
    assert old in text
    (tree / path).write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        load(tree)
    problem = caught.value.problems[0]
    assert problem.file == str(tree / path)
    assert problem.key.startswith(key)
    assert what in problem.what
    assert problem.line or key == "gpu"


def test_every_problem_at_once(tree: Path) -> None:
    (tree / "gpus/h200.yml").write_text("name: [")
    (tree / "gpus/b200.yml").write_text("")
    (tree / "models/kimi-k3.yml").write_text("- 1\n")
    with pytest.raises(ConfigError) as caught:
        load(tree)
    assert {Path(problem.file).name for problem in caught.value.problems} == {"h200.yml", "b200.yml", "kimi-k3.yml"}
