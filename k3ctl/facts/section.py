"""One collector's part of a node's facts: its values, or why there are none."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Count = Annotated[int, Field(ge=0)]
Bytes = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
PortNumber = Annotated[int, Field(ge=0, le=65535)]


class Fact(BaseModel):
    """Base of all facts: frozen, strict types, no NaN. None means that the host could not tell.

    Unknown keys pass: an agent that is newer than this controller may know more.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", allow_inf_nan=False)


T = TypeVar("T", bound=Fact)


@dataclass(frozen=True)
class Section(Generic[T]):
    """Exactly one of `value` and `error` is set. `error` is words for people; `seconds` is what it took."""

    value: T | None = None
    error: str = ""
    seconds: float | None = None


def parse_section(kind: type[T], raw: object) -> Section[T]:
    """A section of the probe's reply, judged strictly: what does not fit is an error, never a guess."""
    if not isinstance(raw, dict):
        return Section(error="the probe said nothing about it")
    spent = raw.get("seconds")
    seconds = float(spent) if isinstance(spent, int | float) and not isinstance(spent, bool) else None
    if "error" in raw:
        said = raw.get("detail") or raw.get("error")
        return Section(error=str(said or "the collector failed without a reason"), seconds=seconds)
    try:
        return Section(value=kind.model_validate_json(json.dumps(raw.get("value"))), seconds=seconds)
    except (ValidationError, ValueError, RecursionError) as error:
        return Section(error=f"what the probe said makes no sense: {_first(error)}", seconds=seconds)


def _first(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    wrong: Any = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in wrong["loc"])
    more = error.error_count() - 1
    return f"{place or 'value'}: {wrong['msg']}" + (f" (and {more} more)" if more else "")
