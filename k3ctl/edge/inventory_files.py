"""Reads the files of an inventory folder, and looks at key files."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from k3ctl.errors import ConfigError, Problem
from k3ctl.inventory.judge import KeyFile
from k3ctl.inventory.text import TextFile
from k3ctl.inventory.tree import SPEC, Part, part
from k3ctl.yaml_source import MAX_BYTES

_MAX_FILES = 500
_MAX_TOTAL = 8 * 1024 * 1024
_MAX_DEPTH = 6  # a link to a folder above would never end


@dataclass(frozen=True)
class Files:
    """An inventory as read. `root` is its real folder, `shown` how the user named it; paths are relative to both."""

    root: Path
    shown: str
    parts: tuple[Part, ...] = ()
    texts: dict[str, TextFile] = field(default_factory=dict)
    spec: bytes | None = None
    problems: tuple[Problem, ...] = ()

    def show(self, relative: str) -> str:
        """The path of a file as problems show it."""
        return os.path.join(self.shown, relative)


def read_files(path: str) -> Files:
    """Everything that is in an inventory folder, or one file of it. ConfigError when there is none at all."""
    if not path.strip():
        raise ConfigError(Problem(what="no inventory is named", expected="a folder, as inventories/lab"))
    try:
        given = Path(path).expanduser()
        real = given.resolve(strict=True)
        mode = real.stat().st_mode
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(_missing(path, Path(path), error)) from error
    if stat.S_ISDIR(mode):
        _refuse_other_folders(real, path)
        return _folder(real, path.rstrip("/") or path)
    if not stat.S_ISREG(mode):
        raise ConfigError(Problem(what="the inventory is neither a folder nor a file", file=path))
    if real.name == SPEC:
        fix = f"name the folder: {os.path.dirname(path) or '.'}"
        raise ConfigError(Problem(what="this is cluster.yml, not the inventory", file=path, fix=fix))
    return _folder(real.parent, os.path.dirname(path) or ".", only=real.name)


def _refuse_other_folders(real: Path, path: str) -> None:
    """`inventories`, `.` or a home folder instead of `inventories/lab`: Ansible would read all that is below it."""
    likely = [name for name in _names(real) if part(name).kind == "hosts" and _says_hosts(name)]
    if (real / SPEC).exists() or any(name.startswith(("hosts", "inventory")) for name in likely):
        return
    inner = sorted(
        str(file.parent.relative_to(real)) for depth in ("*", "*/*") for file in real.glob(f"{depth}/{SPEC}")
    )
    if likely and not inner:  # beside inventories, another YAML file is just that
        return
    what = "this folder holds inventories and is none" if inner else "there is no inventory in this folder: 0 hosts"
    fix = f"name one: {os.path.join(path, inner[0])}" if inner else ""
    expected = f"a folder with hosts.yml and {SPEC}"
    raise ConfigError(Problem(what=what, file=path, found=", ".join(inner[:10]), expected=expected, fix=fix))


def _names(folder: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if not (folder / name).is_dir())
    except OSError as error:
        what = "the folder cannot be read"
        raise ConfigError(Problem(what=what, file=str(folder), found=error.strerror or "")) from error


def _says_hosts(name: str) -> bool:
    """Names that people give to inventory files."""
    return name.endswith((".yml", ".yaml", ".json", ".ini")) or name.startswith(("hosts", "inventory"))


def _missing(path: str, given: Path, error: Exception) -> Problem:
    if isinstance(error, PermissionError):
        return Problem(what="the inventory cannot be read", found=str(error.strerror), file=path)
    if isinstance(error, OSError) and error.errno not in (errno.ENOENT, errno.ENOTDIR):
        return Problem(what="this is no usable path", found=error.strerror or str(error), file=path[:200])
    if isinstance(error, ValueError):
        return Problem(what="this is no usable path", found=str(error), file=path[:200].replace("\0", "?"))
    if given.is_symlink():
        return Problem(what="the inventory is a link to nothing", found=os.readlink(given), file=path)
    there = sorted(p.parent.name for p in given.parent.glob("*/hosts*")) if given.parent.is_dir() else []
    found = f"in {given.parent}: " + ", ".join(dict.fromkeys(there)) if there else ""
    expected = "a folder with hosts.yml and cluster.yml"
    return Problem(what="there is no inventory at this path", file=path, found=found, expected=expected)


def _folder(root: Path, shown: str, only: str = "") -> Files:
    parts: list[Part] = []
    texts: dict[str, TextFile] = {}
    problems: list[Problem] = []
    spec = None
    total = 0
    for count, relative in enumerate(_walk(root, shown, problems)):
        if count >= _MAX_FILES or total > _MAX_TOTAL:
            what = "the folder holds too much for an inventory"
            raise ConfigError(Problem(what=what, file=shown, expected=f"at most {_MAX_FILES} files"))
        item = part(relative)
        if item.kind == "ignored" or (only and item.kind == "hosts" and relative != only):
            continue
        data, mode, problem = _read(root / relative, os.path.join(shown, relative))
        total += len(data)
        if problem:
            problems.append(problem)
        if item.kind == "spec":
            spec = data
            continue
        parts.append(item)
        if not problem:
            private = not mode & 0o077
            texts[relative] = TextFile(os.path.join(shown, relative), item.kind, data, item.entity, private)
    if spec is None:
        problems.append(_no_spec(root, shown))
    return Files(root, shown, tuple(parts), texts, spec, tuple(problems))


def _no_spec(root: Path, shown: str) -> Problem:
    near = next((name for name in ("cluster.yaml", "cluster.json", "Cluster.yml") if (root / name).exists()), "")
    fix = f"rename {near} to {SPEC}" if near else "add it: at least platform, model and engine"
    return Problem(what=f"there is no {SPEC} beside the inventory", file=os.path.join(shown, SPEC), fix=fix)


def _walk(folder: Path, shown: str, problems: list[Problem], prefix: str = "", depth: int = 0) -> Iterator[str]:
    """Relative paths of all files, sorted as Ansible sorts them, links followed."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        what = "the folder cannot be read"
        problems.append(Problem(what=what, file=os.path.join(shown, prefix), found=error.strerror or ""))
        return
    for name in names:
        relative = prefix + name
        if not name.isprintable():  # bytes that are no text, or control characters
            what = "the file's name has characters that cannot be shown"
            problems.append(Problem(what=what, file=os.path.join(shown, prefix), found=ascii(name), fix="rename it"))
        elif (folder / name).is_dir():
            if depth < _MAX_DEPTH and not name.startswith("."):
                yield from _walk(folder / name, shown, problems, relative + "/", depth + 1)
        else:
            yield relative


def _read(path: Path, shown: str) -> tuple[bytes, int, Problem | None]:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return b"", 0, Problem(what="this is no regular file", file=shown, fix="move it away")
        with path.open("rb") as stream:
            return stream.read(MAX_BYTES + 1), stat.S_IMODE(status.st_mode), None
    except OSError as error:
        what = "the file cannot be read"
        if path.is_symlink() and not path.exists():
            what = "the file is a link to nothing"
        return b"", 0, Problem(what=what, file=shown, found=error.strerror or str(error))


def key_file(path: str) -> KeyFile:
    """Look at one private key file; its text is not kept."""
    full = Path(path).expanduser()
    try:
        status = full.stat()
        if not stat.S_ISREG(status.st_mode):
            return KeyFile(str(full), "is no file")
        with full.open("rb") as stream:
            head = stream.read(64)
    except OSError as error:
        why = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
        return KeyFile(str(full), why)
    kind = (
        "private" if b"PRIVATE KEY" in head else "public" if head.startswith((b"ssh-", b"ecdsa-", b"sk-")) else "other"
    )
    return KeyFile(str(full), "", stat.S_IMODE(status.st_mode), status.st_uid == os.getuid(), kind)
