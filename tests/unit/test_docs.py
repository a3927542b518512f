"""The documentation says what the code says: generated pages are current, links and commands exist."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer.main
import yaml

from k3ctl.cli import app
from k3ctl.cluster import ClusterSpec
from k3ctl.commands.plan import as_data
from k3ctl.errors import ExitCode
from k3ctl.lab.commands import app as lab
from k3ctl.lab.faulting import catalogue
from k3ctl.plan import Plan
from k3ctl.profiles.types import Engine, Gpu, Model, Platform
from k3ctl.reference import FOLDER, texts
from k3ctl.reference.fields import anchor, code, doc, nested, rows, type_text
from k3ctl.reference.pages import PAGES
from k3ctl.schemas import file_of
from tests.unit.plan_fixtures import packaged
from tests.unit.test_planner_golden import planned

DOCS = FOLDER.parent
FILES = sorted(DOCS.rglob("*.md"))
ROOTS = (ClusterSpec, Plan, Gpu, Platform, Model, Engine)


@cache
def made() -> dict[str, str]:
    return texts()


@pytest.mark.parametrize("name", PAGES)
def test_the_reference_pages_are_current(name: str) -> None:
    assert (FOLDER / f"{name}.md").read_text(encoding="utf-8") == made()[name], "run `make schema`"


@pytest.mark.parametrize("root", ROOTS, ids=lambda kind: kind.__name__)
def test_every_field_has_a_meaning(root: type) -> None:
    """In its description, in the comment on its line, or by name in the docstring above the table."""
    silent = [
        f"{kind.__name__}.{row.name}"
        for kind in nested(root)
        for row in rows(kind)
        if not row.meaning and not re.search(rf"\b{row.name}\b", doc(kind))
    ]
    assert not silent


@pytest.mark.parametrize(("page", "roots"), [("cluster", ROOTS[:1]), ("plan", ROOTS[1:2]), ("profiles", ROOTS[2:])])
def test_every_field_is_on_its_page(page: str, roots: tuple[type, ...]) -> None:
    text = made()[page]
    for kind in (kind for root in roots for kind in nested(root)):
        for row in rows(kind):
            assert f"| `{row.name}` | {row.kind} |" in text


def test_every_place_and_every_platform_is_on_the_support_page() -> None:
    text = made()["support"]
    profiles = packaged()
    for engine in profiles.engines.values():
        for layout in engine.layouts:
            for platform in layout.platforms:
                assert re.search(rf"^\| {platform} \| \d+ \| {engine.name} \|", text, re.M), (platform, engine.name)
    for platform in profiles.platforms:
        assert re.search(rf"^\| {platform} \| ", text, re.M), platform
    assert "not been run on any of this GPU hardware" in text


def test_types_in_words() -> None:
    kinds = {row.name: row.kind for row in rows(ClusterSpec)}
    assert kinds["strategy"] == "[Strategy](#strategy)"
    assert kinds["waivers"] == "list of [Waiver](#waiver)"
    assert type_text(int | None) == "whole number or null"
    assert type_text(dict[str, tuple[int, ...]]) == "map of text to list of whole number"
    assert code("a|b") == "<code>a&#124;b</code>"
    assert code("a") == "`a`"


@pytest.mark.parametrize(("inventory", "engine"), [("lab", "vllm-cpu"), ("h200x16", "vllm"), ("b300x8", "sglang")])
def test_plans_follow_their_schema(inventory: str, engine: str) -> None:
    schema: dict[str, Any] = json.loads(file_of("plan").read_text(encoding="utf-8"))
    data = as_data(planned(inventory, engine))
    jsonschema.validate(data, schema)
    for broken in ({**data, "extra": 1}, {key: value for key, value in data.items() if key != "nodes"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, schema)


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(DOCS)))
def test_links_lead_somewhere(file: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", file.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, fragment = target.partition("#")
        there = (file.parent / path).resolve() if path else file
        assert there.exists(), target
        if fragment:
            headings = re.findall(r"^#+ (.+)$", there.read_text(encoding="utf-8"), re.M)
            assert fragment in {anchor(heading) for heading in headings}, target


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(DOCS)))
def test_commands_and_flags_exist(file: Path) -> None:
    """Every `k3ctl VERB` and every flag beside it is one of the real program's."""
    known, known_lab = (typer.main.get_command(one) for one in (app, lab))
    for line in re.findall(r"\bk3ctl ([a-z]+[^`#\n]*)", file.read_text(encoding="utf-8")):
        words = line.split()
        group, words = (known_lab, words[1:]) if words[0] == "lab" else (known, words)
        commands: dict[str, Any] = group.commands  # type: ignore[attr-defined]
        if not words or words[0] not in commands:
            assert not words or re.search(rf"(?<!`)k3ctl {re.escape(line)}", file.read_text()), line
            continue
        flags = {flag for option in commands[words[0]].params for flag in option.opts}
        asked = {word for word in words[1 : words.index("--") if "--" in words else None] if word.startswith("-")}
        assert asked <= flags, line


def test_the_pages_name_every_exit_code_and_every_fault() -> None:
    operations, laboratory = ((DOCS / f"{name}.md").read_text(encoding="utf-8") for name in ("operations", "lab"))
    for status in ExitCode:
        assert f"| {int(status)} |" in operations
    for fault in catalogue().values():
        assert f"| `{fault.name}` |" in laboratory


def test_the_navigation_has_every_page() -> None:
    config = yaml.safe_load((DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8"))

    def leaves(value: Any) -> list[str]:
        if isinstance(value, str):
            return [value]
        return [leaf for part in (value.values() if isinstance(value, dict) else value) for leaf in leaves(part)]

    assert sorted(leaves(config["nav"])) == sorted(str(file.relative_to(DOCS)) for file in FILES)
