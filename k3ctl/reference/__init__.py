"""The generated reference pages. `python -m k3ctl.reference` writes docs/reference/ (and `make schema` calls it)."""

from __future__ import annotations

from pathlib import Path

from k3ctl.profiles.load import load
from k3ctl.reference.pages import PAGES

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"


def texts() -> dict[str, str]:
    """Every page as its file holds it: name without .md -> text."""
    profiles = load()
    return {name: made(profiles) for name, made in PAGES.items()}
