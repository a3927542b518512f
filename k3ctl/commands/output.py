"""Data on stdout, talk on stderr; errors become text and an exit code here and nowhere else."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from k3ctl.errors import K3ctlError, Problem
from k3ctl.view import problems as problem_text


class Output:
    """Where a command's words go. `form` is table or json; `color` False when --no-color or NO_COLOR asks for it."""

    def __init__(self, form: str = "table", *, color: bool = True) -> None:
        no_color = not color or bool(os.environ.get("NO_COLOR"))
        self.form = form
        self.talk = Console(stderr=True, no_color=no_color, highlight=False, soft_wrap=True)
        self.data = Console(no_color=no_color, highlight=False)

    @property
    def live(self) -> bool:
        """True when progress may be redrawn: stderr is a terminal."""
        return self.talk.is_terminal and os.environ.get("TERM") != "dumb"

    def line(self, text: str, style: str = "") -> None:
        """One line of talk."""
        self.talk.print(Text(text, style))

    def json(self, value: Any) -> None:
        """One JSON document on stdout."""
        sys.stdout.write(json.dumps(value, indent=2, sort_keys=True, default=str) + "\n")
        sys.stdout.flush()

    @staticmethod
    def grid(*columns: str, title: str = "") -> Table:
        """A table in the house's form: no frame, a rule under the head."""
        table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for column in columns:
            table.add_column(column, overflow="fold")
        return table

    def table(self, table: Table) -> None:
        """A table on stdout."""
        self.data.print(table)

    def text(self, text: str) -> None:
        """Plain data on stdout, unwrapped."""
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def problems(self, problems: Iterable[Problem], style: str = "red") -> None:
        """Problems on stderr: the first line of each in colour."""
        for text in problem_text.lines(problems):
            self.talk.print(Text(text, "" if text.startswith(" ") else style))

    def error(self, error: K3ctlError) -> int:
        """Say an error; its exit code."""
        self.problems(error.problems)
        return int(error.code)
