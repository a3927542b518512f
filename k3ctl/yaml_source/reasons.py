"""Why a file is no YAML, in plain words, with the line where a person would look. Pure."""

from __future__ import annotations

import re
from typing import Any

from k3ctl.errors import Problem

# Part of the parser's message (libyaml and PyYAML word them differently) -> (what, fix).
_REASONS = (
    ("mapping values are not allowed", "a second `: ` in this line, or a `:` is missing or indented wrongly above it"),
    ("could not find expected ':'", "this line is no `key: value`"),
    ("did not find expected ',' or", "a bracket is not closed, or a comma is missing"),
    ("expected ',' or", "a bracket is not closed, or a comma is missing"),
    ("did not find expected '-'", "a list and `key: value` lines are mixed"),
    ("but found '?'", "a list and `key: value` lines are mixed"),
    ("found unexpected end of stream", "a quote is opened here and never closed"),
    ("undefined alias", "`*name` refers to an anchor `&name` that does not exist; quote the text if it is none"),
    ("while scanning an alias", "`*` begins an alias; quote the text if it is none"),
    ("unknown escape character", "a backslash in double quotes begins an escape; use single quotes"),
    ("duplicate anchor", "the anchor `&name` is defined twice"),
    ("cannot start any token", "a value cannot begin with this character; quote the value"),
    ("did not find expected key", "the indentation does not fit the lines above, or a quote ends too early"),
    ("expected <block end>", "the indentation does not fit the lines above, or a quote ends too early"),
    ("directive", "a line that begins with `%` is read as a YAML directive; quote it"),
)
_AT_CONTEXT = ("could not find expected ':'", "found unexpected end of stream")  # the cause is where it began
_TAB_INDENT = re.compile(r"^ *\t")


def syntax(error: Any, text: str, file: str) -> Problem:
    """A parser's error as a problem: tabs first, as they are the usual cause and the least visible."""
    message = f"{error.context or ''} {error.problem or ''}"
    mark = error.problem_mark or error.context_mark
    if any(part in message for part in _AT_CONTEXT) and error.context_mark:
        mark = error.context_mark
    line = mark.line + 1 if mark else None
    column = mark.column + 1 if mark else 1
    lines = text.splitlines()
    tab = _tab_line(lines, line or len(lines))
    if tab:
        return Problem(
            what="a tab is used for indentation; YAML allows only spaces",
            file=file,
            line=tab,
            found=_shown(lines, tab),
            fix="replace the tab by spaces",
        )
    what = next((reason for part, reason in _REASONS if part in message), f"not valid YAML: {message.strip()}")
    return Problem(what=what, file=file, line=line, found=_shown(lines, line), expected=f"valid YAML (column {column})")


def bad_character(text: str, reason: str, file: str) -> Problem:
    """A control character somewhere in the text."""
    for number, line in enumerate(text.split("\n"), 1):
        for character in line.rstrip("\r"):
            if character != "\t" and (ord(character) < 32 or (127 <= ord(character) < 160 and character != "\x85")):
                found = f"U+{ord(character):04X}"
                what = "a control character stands in the file"
                return Problem(what=what, file=file, line=number, found=found, fix="remove the character")
    return Problem(what=f"not valid YAML: {reason}", file=file)


def _tab_line(lines: list[str], last: int) -> int | None:
    """The first line up to `last` whose indentation has a tab."""
    return next((n for n, line in enumerate(lines[:last], 1) if _TAB_INDENT.match(line)), None)


def _shown(lines: list[str], line: int | None) -> str:
    """The line as text, tabs visible; nothing where it may hold a secret."""
    if not line or line > len(lines):
        return ""
    shown = lines[line - 1].rstrip().replace("\t", "<tab>")
    if re.search(r"pass|secret|token|api_?key", shown, re.IGNORECASE):
        return ""
    return shown[:100]
