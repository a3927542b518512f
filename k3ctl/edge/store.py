"""The cluster's folder on the controller: secrets, notes between runs, and one directory per run."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from k3ctl.secret import Secret

KEPT_RUNS = 30


def state_home() -> Path:
    """`$XDG_STATE_HOME/k3ctl`, by default ~/.local/state/k3ctl."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "k3ctl"


def cluster_dir(cluster: str) -> Path:
    """The cluster's own folder, made with mode 0700 when it is not there."""
    path = state_home() / cluster
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o700)
    return path


def write_private(path: Path, data: bytes) -> None:
    """Replace a file atomically; it is never readable by others, not even for a moment."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


class FileStore:
    """phases.world.Store on files. The run directory is made on the first write."""

    def __init__(self, root: Path) -> None:
        self.root = root
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        self.run_dir = root / "runs" / stamp

    def secret(self, name: str, make: Callable[[], str] | None = None) -> Secret | None:
        """The secret of that name; made by `make` and kept (0600) when there is none yet; None without `make`."""
        path = self._folder("secrets") / name
        try:
            return Secret(path.read_text().strip())
        except FileNotFoundError:
            if make is None:
                return None
        text = make()
        write_private(path, text.encode() + b"\n")
        return Secret(text)

    def note(self, name: str) -> str | None:
        """What `keep` kept under that name, or None."""
        try:
            return (self._folder("notes") / name).read_text()
        except FileNotFoundError:
            return None

    def keep(self, name: str, text: str) -> None:
        """Keep a small text between runs, atomically."""
        write_private(self._folder("notes") / name, text.encode())

    def write(self, name: str, text: str) -> None:
        """Write a file of this run's own directory, atomically."""
        self._open_run()
        write_private(self.run_dir / name, text.encode())

    def read(self, name: str) -> str | None:
        """A file of this run's own directory, or None."""
        try:
            return (self.run_dir / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def append(self, name: str, line: str) -> None:
        """Add one line to a file of this run's own directory."""
        self._open_run()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with os.fdopen(os.open(self.run_dir / name, flags, 0o600), "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _folder(self, name: str) -> Path:
        path = self.root / name
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        return path

    def _open_run(self) -> None:
        """Make the run directory once, point `latest` at it and drop the oldest runs."""
        if self.run_dir.is_dir():
            return
        self.run_dir.mkdir(parents=True, mode=0o700)
        link = self.root / "runs" / f".latest.{os.getpid()}"
        link.unlink(missing_ok=True)
        link.symlink_to(self.run_dir.name)
        link.replace(self.root / "runs" / "latest")
        runs = sorted(p for p in (self.root / "runs").iterdir() if p.is_dir() and not p.is_symlink())
        for old in runs[:-KEPT_RUNS]:
            for file in old.iterdir():
                file.unlink(missing_ok=True)
            old.rmdir()
