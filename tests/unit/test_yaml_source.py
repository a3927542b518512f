"""YAML with line marks: reasons in plain words, places, and no way to make it raise or hang."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3ctl.yaml_source import Vaulted, decode, dotted, parse


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("a:\n\tb: 1\n", 2, "a tab is used for indentation"),
        ("a:\n  b: 1\n\tc: 2\n", 3, "a tab is used for indentation"),
        ("a: b: c\n", 1, "a second `: `"),
        ("a: 1\nfoo\nb: 2\n", 2, "no `key: value`"),
        ("a:\n  b: 1\n c: 2\n", 3, "indentation"),
        ('a: "x\nb: 1\n', 1, "a quote is opened here"),
        ("a: *x\n", 1, "anchor"),
        ('a: "\\q"\n', 1, "backslash"),
        ("a: @x\n", 1, "cannot begin with this character"),
        ("a: %x\n", 1, "cannot begin with this character"),
        ("a: [1, 2\nb: 1\n", 2, "bracket"),
        ("- a\nb: 1\n", 2, "a list and `key: value`"),
        ("a: &x [*x]\n", 1, "contains itself"),
        ("<<: &a\n  <<: *a\n", 2, "into itself"),
        ("a: &x 1\nb: &x 2\n", 2, "defined twice"),
        ("a: 1\n---\nb: 2\n", 3, "second document"),
        ("a: \x07\n", 1, "control character"),
        ("[" * 3000, 1, "nest"),
    ],
)
def test_reasons(text: str, line: int, what: str) -> None:
    source, problems = parse(text, "f.yml")
    assert source is None
    assert [(p.file, p.line) for p in problems] == [("f.yml", line)]
    assert what in problems[0].what


@pytest.mark.parametrize(
    ("text", "line", "key", "what"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "a", "given twice"),
        ("a:\n  - {b: 1, b: 2}\n", 2, "a[0].b", "given twice"),
        ("a: {{ x }}\n", 1, "a", "must be quoted"),
        ("? [x]\n: 1\n", 1, "", "a list or a mapping"),
        ("a: 2026-13-45\n", 1, "a", "timestamp"),
        ("a: !foo x\n", 1, "a", "unknown YAML tag"),
        ("a: !!int x\n", 1, "a", "as int"),
        ("a: " + "9" * 5000, 1, "a", "as int"),
        ("a: 1\n<<: 2\n", 2, "", "can merge mappings only"),
    ],
)
def test_problems_beside_a_value(text: str, line: int, key: str, what: str) -> None:
    source, problems = parse(text, "f.yml")
    assert source is not None
    assert [(p.line, p.key) for p in problems] == [(line, key)]
    assert what in problems[0].what


def test_places_and_values() -> None:
    text = "top:\n  list:\n    - x: 022\n  word: 'quoted'\nbase: &b {k: 1, j: 2}\nmerged:\n  <<: *b\n  k: 3\n"
    source, problems = parse(text, "f.yml")
    assert source is not None
    assert not problems
    assert source.value["merged"] == {"k": 3, "j": 2}
    assert source.line(("top", "list", 0, "x")) == 3
    assert source.line(("top", "missing")) == 1
    assert source.line(("merged", "j")) == 5
    octal = source.values[("top", "list", 0, "x")]
    assert (octal.raw, octal.plain, octal.changed_number) == ("022", True, True)
    assert not source.values[("top", "word")].plain
    assert source.at(("top", "nothing", 3)) is None
    assert dotted(("top", "list", 0, "x")) == "top.list[0].x"


def test_vault_and_unsafe_and_empty() -> None:
    source, problems = parse("a: !vault |\n  $ANSIBLE_VAULT;1.1\nb: !unsafe '{{ x }}'\n", "f")
    assert source is not None
    assert not problems
    assert isinstance(source.value["a"], Vaulted)
    assert source.value["b"] == "{{ x }}"
    for text in ("", "# only a comment\n", "---\n"):
        empty, problems = parse(text, "f")
        assert empty is not None
        assert (empty.value, problems) == (None, ())


def test_a_bomb_of_aliases_ends_soon() -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 15)]
    started = time.monotonic()
    source, problems = parse("\n".join(lines), "f")
    assert source is None
    assert problems[0].what == "too many entries"
    assert time.monotonic() - started < 10


def test_secrets_of_a_broken_line_are_not_shown() -> None:
    _, problems = parse("ansible_become_password: 'hunter2\n", "f")
    assert "hunter2" not in str(problems)


def test_decode() -> None:
    assert decode("\ufeffa".encode(), "f") == ("a", ())
    assert decode(b"a\n\xff", "f")[1][0].line == 2
    assert decode("a".encode("utf-16"), "f")[1][0].what == "the file is UTF-16"


@settings(max_examples=300, deadline=None)
@given(
    st.text(alphabet=st.sampled_from(list("ab:- \n\t'\"[]{}&*!|>%@`#,?<0179_.~\\\x00\x85é\u2028\ufeff")), max_size=60)
)
def test_any_text_gives_a_value_or_problems(text: str) -> None:
    source, problems = parse(text, "f")
    assert source is not None or problems
    if source:
        for path, _, place in source.scalars():
            assert place.line >= 1
            assert source.line(path)
