"""Read the profile files of the package, or of a folder laid out like it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from k3ctl.errors import ConfigError, Problem
from k3ctl.nearest import nearest
from k3ctl.profiles.types import Engine, Gpu, Model, Platform, Profiles
from k3ctl.yaml_source import YamlSource, decode, dotted, parse

PACKAGED = Path(__file__).parent
KINDS: Mapping[str, type[BaseModel]] = {"gpus": Gpu, "platforms": Platform, "models": Model, "engines": Engine}
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
    if not problems:
        problems += _without_gpu(profiles, root / "platforms")
    if problems:
        raise ConfigError(*problems)
    return profiles


def _kind(folder: Path, kind: type[T], problems: list[Problem]) -> dict[str, T]:
    """Every file of one folder; the file's name must be the profile's name."""
    found: dict[str, T] = {}
    for file in sorted(folder.glob("*.yml")):
        source = _source(file, problems)
        if source is None:
            continue
        try:
            profile = kind.model_validate(source.value)
        except ValidationError as error:
            problems.extend(_refused(item, source) for item in error.errors())
            continue
        name = str(getattr(profile, "name", ""))
        if name != file.stem:
            what = "file and profile are named differently"
            place = source.line(("name",))
            problems.append(Problem(what=what, file=str(file), line=place, found=name, expected=file.stem))
        found[file.stem] = profile
    return found


def _source(file: Path, problems: list[Problem]) -> YamlSource | None:
    """The file parsed; None when it could not be, or when it has a key twice."""
    text, wrong = decode(file.read_bytes(), str(file))
    source, more = parse(text, str(file)) if not wrong else (None, ())
    found = [*wrong, *more]
    problems += found
    return None if found else source


def _refused(item: Any, source: YamlSource) -> Problem:
    """One of pydantic's errors, at the line of the deepest part of it that the file has."""
    at = path = tuple(item["loc"])
    while at and at not in source.values:
        at = at[:-1]
    return Problem(
        what=item["msg"],
        file=source.file,
        line=source.line(at),
        key=dotted(path),
        found=repr(item.get("input"))[:120],
        fix="see docs/reference/profiles.md",
    )


def _without_gpu(profiles: Profiles, folder: Path) -> list[Problem]:
    """Platforms whose GPU has no profile."""
    return [
        Problem(
            what="no GPU profile of that name",
            file=str(folder / f"{platform.name}.yml"),
            key="gpu",
            found=platform.gpu,
            expected="one of " + ", ".join(sorted(profiles.gpus)),
            fix=f"did you mean `{near}`?"
            if (near := nearest(platform.gpu, profiles.gpus))
            else "add its file to gpus/",
        )
        for platform in profiles.platforms.values()
        if platform.gpu not in profiles.gpus
    ]
