"""The serving environment: fetched, proven, unpacked, tried, and only then there."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from k3ctl.lab.hub.faults import Faults, Rule
from k3ctl.lab.hub.links import LinkSigner
from k3ctl.lab.hub.log import RequestLog
from k3ctl.lab.hub.server import Hub, Running, serving
from k3ctl.lab.hub.store import HubStore
from tests.local.stage_fixtures import QUICK, noise, wait_for

needs_zstd = pytest.mark.skipif(shutil.which("zstd") is None, reason="zstd is not installed here")
PROGRAM = b"#!/bin/sh\nexec echo works\n"


def tar_of(add: Callable[[tarfile.TarFile], None]) -> bytes:
    """A plain tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        add(tar)
    return out.getvalue()


def member(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.uid, info.gid = len(content), mode, 1234, 1234
    tar.addfile(info, io.BytesIO(content))


def link(tar: tarfile.TarFile, name: str, target: str) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    tar.addfile(info)


def environment(tar: tarfile.TarFile) -> None:
    """What a small environment looks like."""
    member(tar, "./bin/python", PROGRAM, 0o755)
    member(tar, "./lib/data.bin", noise(3_000_000))
    link(tar, "./lib64", "lib")


class Bench:
    """A hub that serves one archive, and the agent that puts it in place."""

    def __init__(self, root: Path, running: Running, archive: bytes) -> None:
        self.root, self.running, self.archive = root, running, archive
        self.digest = hashlib.sha256(archive).hexdigest()
        self.path = root / "runtimes" / f"env-{self.digest[:12]}"
        self.said = ""

    def job(self, **more: Any) -> dict[str, Any]:
        job = {
            "name": "env",
            "digest": self.digest,
            "bytes": len(self.archive),
            "url": f"{self.running.endpoint}/files/runtimes/env.tar.zst",
            "path": str(self.path),
            "program": "bin/python",
            "need_bytes": 4 * len(self.archive),
            "self_test": {"argv": [str(self.path / "bin/python")], "timeout_s": 10},
            "wait_tools_s": 1,
            "limits": QUICK,
        }
        return {**job, **more}

    def start(self, **more: Any) -> subprocess.Popen[str]:
        self.path.parent.mkdir(exist_ok=True)
        job = self.root / "job.json"
        job.write_text(json.dumps(self.job(**more)))
        argv = [sys.executable, "-m", "k3ctl.node", "unpack-run", str(job)]
        return subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def run(self, **more: Any) -> int:
        agent = self.start(**more)
        _, self.said = agent.communicate(timeout=40)
        return agent.returncode

    def status(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads((self.work / "status.json").read_text())
        return said

    @property
    def work(self) -> Path:
        return self.path.parent / ".k3work" / self.path.name

    def in_place(self) -> bool:
        record = json.loads((self.path / ".k3ctl-complete.json").read_text())
        assert (record["digest"], record["name"], record["bytes"]) == (self.digest, "env", len(self.archive))
        assert not (self.path.parent / f"{self.path.name}.partial").exists()
        assert not (self.work / "archive").exists()
        assert not (self.path / ".k3ctl-partial.json").exists()
        return (self.path / "lib/data.bin").read_bytes() == noise(3_000_000)

    def requests(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.root / "requests").read_text().splitlines()]


@contextmanager
def bench(root: Path, archive: bytes) -> Iterator[Bench]:
    folder = root / "hub" / "files" / "runtimes"
    folder.mkdir(parents=True)
    (folder / "env.tar.zst").write_bytes(archive)
    hub = Hub(HubStore(root / "hub"), LinkSigner(60), Faults(), RequestLog(root / "requests"))
    with serving(hub, "127.0.0.1") as running:
        yield Bench(root, running, archive)


def zstd(data: bytes) -> bytes:
    return subprocess.run(["zstd", "-c", "-1"], input=data, capture_output=True, check=True).stdout


@needs_zstd
def test_put_in_place_and_again(tmp_path: Path) -> None:
    with bench(tmp_path, zstd(tar_of(environment))) as one:
        assert one.run() == 0, one.said
        assert one.in_place()
        assert one.status()["state"] == "complete"
        assert one.status()["done"] == one.status()["total"]
        assert (one.path / "lib64").is_symlink()
        assert (one.path / "bin/python").stat().st_uid != 1234
        before = len(one.requests())
        assert one.run() == 0
        assert len(one.requests()) == before


@needs_zstd
def test_kill_while_fetching_and_while_unpacking(tmp_path: Path) -> None:
    with bench(tmp_path, zstd(tar_of(environment))) as one:
        one.running.hub.faults.replace((Rule("/files/*", "slow", rate=len(one.archive) / 2, count=0),))
        agent = one.start()
        wait_for(lambda: (one.work / "status.json").exists() and one.status()["done"] > one.status()["total"] / 8)
        agent.kill()
        agent.communicate()
        assert not one.path.exists()
        one.running.hub.faults.replace(())
        # Stand in for a crash after the rename and before the end: the folder is there, the marker is not.
        assert one.run(self_test={"argv": ["/bin/false"], "timeout_s": 5}) == 8
        assert one.path.exists()
        assert not (one.path / ".k3ctl-complete.json").exists()
        before = len(one.requests())
        assert one.run() == 0, one.said
        assert one.in_place()
        assert len(one.requests()) == before  # the proven archive is not fetched again


@needs_zstd
def test_terminate_while_waiting_for_zstd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bench(tmp_path, zstd(tar_of(environment))) as one:
        tools = tmp_path / "tools"
        tools.mkdir()
        (tools / "tar").symlink_to("/bin/tar")
        monkeypatch.setenv("PATH", str(tools))
        assert one.run(wait_tools_s=0.1) == 8
        assert "zstd is not installed" in one.status()["reason"]
        agent = one.start(wait_tools_s=60)
        wait_for(lambda: "waiting for zstd" in one.status()["note"])
        agent.send_signal(signal.SIGTERM)
        agent.communicate(timeout=10)
        assert agent.returncode == 0
        assert one.status()["state"] == "stopped"


def test_wrong_digest(tmp_path: Path) -> None:
    archive = tar_of(environment)
    with bench(tmp_path, archive) as one:
        one.digest = "0" * 64
        assert one.run() == 4
        assert hashlib.sha256(archive).hexdigest() in one.status()["reason"]
        assert not one.path.exists()


def test_url_that_is_not_there(tmp_path: Path) -> None:
    with bench(tmp_path, tar_of(environment)) as one:
        assert one.run(url=one.running.endpoint + "/files/nothing") == 5
        assert "404" in one.status()["reason"]


def test_self_test_that_fails_is_shown(tmp_path: Path) -> None:
    def broken(tar: tarfile.TarFile) -> None:
        member(tar, "bin/python", b"#!/bin/sh\necho libmissing.so: cannot open >&2; exit 3\n", 0o755)

    with bench(tmp_path, tar_of(broken)) as one:
        assert one.run() == 8
        assert "status 3: libmissing.so: cannot open" in one.status()["reason"]
        assert not (one.path / ".k3ctl-complete.json").exists()


def test_self_test_has_a_time_limit(tmp_path: Path) -> None:
    with bench(tmp_path, tar_of(environment)) as one:
        assert one.run(self_test={"argv": ["/bin/sleep", "30"], "timeout_s": 0.3}) == 8
        assert "did not end in 0.3 s" in one.status()["reason"]


def test_members_cannot_leave_the_folder(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()

    def climbing(tar: tarfile.TarFile) -> None:
        environment(tar)
        member(tar, "../../escaped", b"x")

    def through_link(tar: tarfile.TarFile) -> None:
        environment(tar)
        link(tar, "door", str(outside))
        member(tar, "door/escaped", b"x")

    for number, evil in enumerate((climbing, through_link)):
        root = tmp_path / str(number)
        root.mkdir()
        with bench(root, tar_of(evil)) as one:
            assert one.run() == 8
            assert "cannot be unpacked" in one.status()["reason"]
    assert list(outside.iterdir()) == []
    assert list(tmp_path.rglob("escaped")) == []


def test_archive_that_is_laid_out_otherwise(tmp_path: Path) -> None:
    with bench(tmp_path, tar_of(lambda tar: member(tar, "top/bin/python", PROGRAM, 0o755))) as one:
        assert one.run() == 8
        assert "holds no bin/python" in one.status()["reason"]


@needs_zstd
def test_damaged_archive_with_the_right_digest(tmp_path: Path) -> None:
    whole = zstd(tar_of(environment))
    with bench(tmp_path, whole[: len(whole) // 2]) as one:
        assert one.run() == 8
        assert "cannot be unpacked" in one.status()["reason"]


def test_folder_of_somebody_else_stays(tmp_path: Path) -> None:
    with bench(tmp_path, tar_of(environment)) as one:
        one.path.mkdir(parents=True)
        (one.path / "mine.txt").write_text("mine")
        assert one.run() == 8
        assert "was not made by k3ctl" in one.status()["reason"]
        assert (one.path / "mine.txt").read_text() == "mine"


def test_room_is_checked_first(tmp_path: Path) -> None:
    with bench(tmp_path, tar_of(environment)) as one:
        assert one.run(free_bytes=10) == 3
        assert "short" in one.status()["reason"]
        assert not one.requests()
