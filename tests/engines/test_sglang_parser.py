"""Every argument list that the inventories render for SGLang, in every version, through that release's own parser.

make check-engines. The environment is made once (.cache/engines/sglang, minutes); the questions take about 10 s a
release.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest

from k3ctl.planner.versions import has
from tests.engines.rendered import clusters, layouts_of
from tests.engines.sglang_questions import ENGINE, ENVIRONMENT, arguments, ask, everything, question_id

pytestmark = pytest.mark.timeout(1800)
# The build of 0.5.16 that has Kimi-K3 is no package; what it is given is held against the release that followed it.
STAND_IN = {"0.5.16": "0.5.17"}
RELEASES = [version.version for version in ENGINE.versions if version.version not in STAND_IN]
# Flags that a rule leaves out although the parser still takes them: deprecated, and their source says so.
DEPRECATED = {"--enable-dp-attention", "--disable-cuda-graph"}
# Read by AITER itself.
FOREIGN = re.compile(r"^(AITER|HF|TRANSFORMERS|NCCL|PYTORCH)_")
KEY = 'a "key": with signs #'
WRONG = ("dropped", "prefix")


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Release -> its options and answers."""
    ENVIRONMENT.make()
    folder = tmp_path_factory.mktemp("sglang")
    key_file = folder / "api_key.yml"
    key_file.write_text(f"api-key: {json.dumps(KEY)}\n")
    found = {}
    for release in RELEASES:
        questions = [
            {"id": question_id(one), "argv": arguments(one)}
            for one in everything()
            if STAND_IN.get(one.version, one.version) == release
        ]
        questions.append({"id": "dropped", "argv": ["--model-path=/m", "--cuda-graph-max-bs=256"]})
        questions.append({"id": "prefix", "argv": ["--model-path=/m", "--mem-fraction-stat=0.8"]})
        questions.append({"id": "key", "argv": [*arguments(everything()[0]), "--config", str(key_file)]})
        found[release] = ask(release, questions, folder)
    return found


def test_every_layout_of_every_inventory_is_among_them() -> None:
    there = {"/".join(one.name.split("/")[:2]) for one in everything()}
    wanted = {f"{cluster.name}/{layout}" for cluster in clusters() for layout in layouts_of(cluster, "sglang")}
    assert there == wanted
    assert {one.version for one in everything()} == {version.version for version in ENGINE.versions}
    assert any(one.draft for one in everything())


@pytest.mark.parametrize("release", RELEASES)
def test_the_parser_takes_every_argument_list(release: str, asked: dict[str, dict[str, Any]]) -> None:
    answers = asked[release]["answers"]
    assert len(answers) > 20
    refused = {name: answer["error"] for name, answer in answers.items() if answer["error"] and name not in WRONG}
    assert refused == {}


@pytest.mark.parametrize("release", RELEASES)
def test_a_dropped_flag_is_seen(release: str, asked: dict[str, dict[str, Any]]) -> None:
    answers = asked[release]["answers"]
    gone = not has(release, next(change for change in ENGINE.flags if change.name == "--cuda-graph-max-bs"))
    assert answers["dropped"]["error"] == ("no such option: --cuda-graph-max-bs" if gone else "")
    assert answers["prefix"]["error"] == "no such option: --mem-fraction-stat"


@pytest.mark.parametrize("release", RELEASES)
def test_every_value_arrives(release: str, asked: dict[str, dict[str, Any]]) -> None:
    """argparse may take one flag for another: each must come out as it went in."""
    for name, answer in asked[release]["answers"].items():
        for flag, (given, taken) in answer["given"].items():
            if flag in ("--config", "--model-loader-extra-config"):
                continue
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
def test_the_key_comes_from_its_file(release: str, asked: dict[str, dict[str, Any]]) -> None:
    answers = asked[release]["answers"]
    assert answers["key"]["api_key"] == KEY
    assert {answer["api_key"] for name, answer in answers.items() if name != "key" and not answer["error"]} == {None}


@pytest.mark.parametrize("release", RELEASES)
def test_rules_say_what_the_release_has(release: str, asked: dict[str, dict[str, Any]]) -> None:
    options = asked[release]["options"]
    for change in ENGINE.flags:
        there = change.name in options
        if has(release, change):
            assert there, f"{release} has no {change.name}"
        elif there:
            assert change.name in DEPRECATED, f"{release} has {change.name} although the rule says it has not"
            assert "deprecated" in change.source
        instead = change.becomes.partition("=")[0]
        if not has(release, change) and instead.startswith("--"):
            assert instead in options, f"{release} has no {instead} either"


@cache
def variables_read(release: str) -> frozenset[str]:
    """Every SGLANG_ and SGL_ name in the release's files."""
    names: set[str] = set()
    for file in (ENVIRONMENT.source(release) / "sglang").rglob("*.py"):
        names |= set(re.findall(r"\bSGL(?:ANG)?_[A-Z0-9_]+", file.read_text(encoding="utf-8", errors="ignore")))
    return frozenset(names)


@pytest.mark.parametrize("release", RELEASES)
def test_every_variable_is_read(release: str, asked: dict[str, dict[str, Any]]) -> None:
    """SGLang ignores a variable that it does not know, without a word."""
    there = variables_read(release)
    given = {name for one in everything() if one.version == release for name in one.env if not FOREIGN.match(name)}
    assert given - there == set()
    for change in ENGINE.variables:
        assert has(release, change) == (change.name in there), f"{release}: {change.name}"
