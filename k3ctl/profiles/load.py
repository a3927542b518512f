"""Read the profile files of the package, or of a folder laid out like it."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from k3ctl.errors import ConfigError, Problem
from k3ctl.profiles.types import Engine, Gpu, Model, Platform, Profiles

PACKAGED = Path(__file__).parent
T = TypeVar("T", bound=BaseModel)


def load(root: Path = PACKAGED) -> Profiles:
    """All profiles below `root` (gpus/, platforms/, models/, engines/). Raises ConfigError with every problem."""
    problems: list[Problem] = []
    profiles = Profiles(
        gpus=_kind(root / "gpus", Gpu, problems),
        platforms=_kind(root / "platforms", Platform, problems),
        models=_kind(root / "models", Model, problems),
        engines=_kind(root / "engines", Engine, problems),
    )
    if problems:
        raise ConfigError(*problems)
    return profiles


def _kind(folder: Path, kind: type[T], problems: list[Problem]) -> dict[str, T]:
    """Every file of one folder; the file's name must be the profile's name."""
    found: dict[str, T] = {}
    for file in sorted(folder.glob("*.yml")):
        try:
            profile = kind.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
        except yaml.YAMLError as error:
            problems.append(Problem(what=f"not YAML: {error}", file=str(file), fix="correct the file"))
        except ValidationError as error:
            problems.extend(
                Problem(
                    what=item["msg"],
                    file=str(file),
                    key=".".join(str(part) for part in item["loc"]),
                    found=repr(item.get("input"))[:120],
                    fix="see docs/reference/profiles.md",
                )
                for item in error.errors()
            )
        else:
            name = str(getattr(profile, "name", ""))
            if name != file.stem:
                problems.append(
                    Problem(
                        what="file and profile are named differently", file=str(file), found=name, expected=file.stem
                    )
                )
            found[file.stem] = profile
    return found
