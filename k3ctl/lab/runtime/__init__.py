"""The lab's serving environment: vLLM for CPUs as one archive, built once per recipe and base system.

<cache>/runtimes/<name>-<build id>.tar.zst   the archive; its names are relative to the install path
<cache>/runtimes/<name>-<build id>.json      Bundle, written last
<cache>/runtimes/<name>.json                 the same, of the build that was asked for last: profiles read this one
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from k3ctl.lab.base import locked
from k3ctl.lab.runtime.archive import pack, size
from k3ctl.lab.runtime.build import build
from k3ctl.lab.runtime.recipe import NAME, Recipe

__all__ = ["NAME", "Bundle", "Recipe", "ensure", "publish"]

_WAIT_S = 3600.0
_KEPT = 3  # archives of about 390 MB


@dataclass(frozen=True)
class Bundle:
    """An archive. `sha256` is the digest of the plan; nodes unpack it into `install_path`, which holds bin/."""

    name: str
    build_id: str
    archive: str
    path: str
    sha256: str
    bytes: int
    unpacked_bytes: int
    install_path: str


Builder = Callable[[Path, Path, Recipe, Path, Callable[[str], None]], Path]


def ensure(cache: Path, base_root: Path, say: Callable[[str], None], builder: Builder = build) -> Bundle:
    """The archive for a base system, built if need be (minutes). Raises LabFailed with the end of the build's log.

    A build that was killed leaves a folder `building-*` in the cache, removed by the next one, and pip's downloads,
    used by the next one.
    """
    recipe, folder = Recipe.of(base_root), cache / "runtimes"
    bundle = _find(folder, recipe)
    if bundle is None:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(cache / "locks" / "runtime.lock", say, "the serving environment is being built", wait_s=_WAIT_S):
            bundle = _find(folder, recipe) or _make(folder, base_root, recipe, say, builder)
    text = json.dumps(asdict(bundle), indent=1, sort_keys=True) + "\n"
    current = folder / f"{recipe.name}.json"
    if not current.is_file() or current.read_text() != text:
        _write(current, text)
    return bundle


def publish(cache: Path, hub_data: Path) -> None:
    """Let a hub serve the archives at /files/runtimes/."""
    link = hub_data / "files" / "runtimes"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(cache / "runtimes")


def _find(folder: Path, recipe: Recipe) -> Bundle | None:
    """The bundle of a recipe when its archive is there in its full size."""
    try:
        said = json.loads((folder / f"{recipe.name}-{recipe.build_id}.json").read_text())
        bundle = Bundle(**said)
        whole = Path(bundle.path).stat().st_size == bundle.bytes
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return bundle if whole else None


def _make(folder: Path, base_root: Path, recipe: Recipe, say: Callable[[str], None], builder: Builder) -> Bundle:
    for left in folder.glob("building-*"):
        shutil.rmtree(left)
    scratch = folder / f"building-{os.getpid()}"
    say(f"serving environment {recipe.name}: building it once (2 to 10 minutes, most of it downloads)")
    try:
        made = builder(scratch, base_root, recipe, folder / "pip-cache", say)
        say("serving environment: packing")
        target = folder / recipe.archive
        packed = pack(made, scratch / "archive")
        os.replace(scratch / "archive", target)
        bundle = Bundle(
            name=recipe.name,
            build_id=recipe.build_id,
            archive=recipe.archive,
            path=str(target),
            sha256=packed.sha256,
            bytes=packed.bytes,
            unpacked_bytes=size(made),
            install_path=recipe.install_path,
        )
        _write(folder / f"{recipe.name}-{recipe.build_id}.json", json.dumps(asdict(bundle), indent=1) + "\n")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    shutil.rmtree(folder / "pip-cache", ignore_errors=True)
    _forget_old(folder, recipe.name)
    return bundle


def _forget_old(folder: Path, name: str) -> None:
    """Keep the newest few: other checkouts and other distributions may use them."""
    archives = sorted(folder.glob(f"{name}-*.tar.zst"), key=lambda p: p.stat().st_mtime, reverse=True)
    for archive in archives[_KEPT:]:
        archive.with_name(archive.name.removesuffix(".tar.zst") + ".json").unlink(missing_ok=True)
        archive.unlink()


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    os.replace(temporary, path)
