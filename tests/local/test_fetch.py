"""The agent end to end against the lab's hub: what is fetched, proven, kept, and not fetched again."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from k3ctl.lab.hub.faults import Rule
from tests.local.stage_fixtures import PIECE, SHARD, Bed, bed, next_revision, noise, wait_for


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 20 * PIECE + 5])
def test_sizes(tmp_path: Path, size: int) -> None:
    with bed(tmp_path, {SHARD: noise(size)}) as hub:
        assert hub.run() == 0, hub.extra["stderr"]
        assert hub.whole()
        assert hub.status()["state"] == "complete"
        assert hub.status()["done"] == hub.status()["total"] == size
        assert sum(last - first + 1 for first, last in hub.ranges(SHARD)) == size


def test_many_files_and_folders(tmp_path: Path) -> None:
    files = {f"model-{i:05}-of-000012.safetensors": noise(PIECE + i, i) for i in range(1, 13)}
    files |= {"config.json": b"{}", "sub/deep/notes.txt": b"n", "empty.txt": b"", "a b%20ü.txt": b"odd name"}
    with bed(tmp_path, files) as hub:
        assert hub.run(connections=4) == 0, hub.extra["stderr"]
        assert hub.whole()
        served = hub.served()
        resolves = [line["path"] for line in served if "/resolve/" in line["path"]]
        assert len(resolves) == len(set(resolves)) == len(files) - 1  # once a file; an empty one needs no request
        assert hub.run() == 0  # a second run finds everything sealed
        assert len(hub.served()) == len(served)


def kill_at(hub: Bed, share: float, number: signal.Signals, **more: object) -> int:
    """Start the agent on a slow line and signal it when so much is done; its exit status."""
    hub.faults(Rule("/cdn/*", "slow", count=0, rate=hub.manifest.total / 3))
    agent = hub.start(**more)
    try:
        wait_for(
            lambda: (hub.own / "status.json").exists() and hub.status()["done"] > share * hub.manifest.total, timeout=20
        )
        agent.send_signal(number)
        agent.wait(10)
    finally:
        agent.kill()
        agent.communicate()
        hub.faults()
    return agent.returncode


def test_kill_and_resume_fetches_only_what_is_missing(tmp_path: Path) -> None:
    with bed(tmp_path, {SHARD: noise(40 * PIECE + 9)}) as hub:
        assert kill_at(hub, 0.4, signal.SIGKILL) == -signal.SIGKILL
        assert hub.nothing_named()
        before = len(hub.served())
        assert hub.run() == 0, hub.extra["stderr"]
        assert hub.whole()
        again = sum(last - first + 1 for first, last in hub.ranges(SHARD, before))
        # 16 of 40 pieces were there; two unfinished ones and those of one journal interval may be lost.
        assert again <= hub.manifest.total * 0.6 + 4 * PIECE
        assert again == hub.manifest.total - resumed_bytes(hub)


def resumed_bytes(hub: Bed) -> int:
    """What the last run said it found."""
    said = [json.loads(line) for line in hub.events().splitlines() if '"resumed"' in line]
    return int(said[-1]["text"].split()[0])


def test_terminate_leaves_in_good_order(tmp_path: Path) -> None:
    with bed(tmp_path, {SHARD: noise(40 * PIECE), "config.json": b"{}"}) as hub:
        assert kill_at(hub, 0.3, signal.SIGTERM) == 0
        assert hub.status()["state"] == "stopped"
        done = hub.status()["done"]
        assert not (hub.own / "COMPLETE.json").exists()
        assert (hub.own / "job.json").exists()  # a restart goes on by itself
        assert hub.run() == 0, hub.extra["stderr"]
        assert hub.whole()
        assert done - resumed_bytes(hub) < 2 * PIECE  # whole pieces are kept to the last one


def test_cut_connection_goes_on_at_the_same_byte(tmp_path: Path) -> None:
    with bed(tmp_path, {SHARD: noise(6 * PIECE)}) as hub:
        hub.faults(Rule("/cdn/*", "cut", at=1000, count=3), Rule("/cdn/*", "reset", at=777, count=2))
        assert hub.run(connections=1) == 0, hub.extra["stderr"]
        assert hub.whole()
        assert hub.status()["fetched"] == hub.manifest.total  # not one byte twice
        assert hub.status()["retries"] == 5
        assert [first for first, _ in hub.ranges(SHARD)][:4] == [0, 1000, 2000, 3000]


def test_part_is_not_believed_without_its_journal(tmp_path: Path) -> None:
    """A part file of full size says nothing: fallocate makes it so before the first byte."""
    with bed(tmp_path, {SHARD: noise(10 * PIECE)}) as hub:
        kill_at(hub, 0.5, signal.SIGKILL)
        (hub.own / "journal").unlink()
        before = len(hub.served())
        assert hub.run() == 0
        assert hub.whole()
        assert sum(last - first + 1 for first, last in hub.ranges(SHARD, before)) == hub.manifest.total


def test_journal_is_not_believed_without_its_part(tmp_path: Path) -> None:
    with bed(tmp_path, {SHARD: noise(10 * PIECE)}) as hub:
        kill_at(hub, 0.5, signal.SIGKILL)
        (hub.own / "parts" / "00000.part").unlink()
        assert hub.run() == 0
        assert hub.whole()
        assert "is gone or short" in hub.events()


def test_torn_part_is_found_by_the_digest(tmp_path: Path) -> None:
    """Bytes that the journal names but that are wrong on disk: found, fetched again."""
    with bed(tmp_path, {SHARD: noise(10 * PIECE)}) as hub:
        kill_at(hub, 0.5, signal.SIGKILL)
        with open(hub.own / "parts" / "00000.part", "r+b") as part:
            part.write(b"\0" * PIECE)
        assert hub.run() == 0
        assert hub.whole()
        assert "fetched again (round 2)" in hub.events()


def test_flipped_byte_is_fetched_again(tmp_path: Path) -> None:
    with bed(tmp_path, {SHARD: noise(5 * PIECE), "config.json": b"{}"}) as hub:
        hub.faults(Rule("/cdn/*", "flip", at=2 * PIECE + 3, count=1, range=f"bytes={2 * PIECE}-*"))
        assert hub.run() == 0, hub.extra["stderr"]
        assert hub.whole()
        assert hub.status()["retries"] == 1


def test_wrong_content_for_good_is_a_clear_failure(tmp_path: Path) -> None:
    with bed(tmp_path, {SHARD: noise(2 * PIECE), "config.json": b"{}", "more.safetensors": noise(99, 2)}) as hub:
        hub.faults(Rule("/cdn/*00001*", "flip", at=0, count=0))
        assert hub.run() == 4
        status = hub.status()
        wanted = next(f.sha256 for f in hub.manifest.files if f.path == SHARD)
        assert (status["state"], status["code"], status["sealed"]) == ("failed", "digest", 2)  # the rest went on
        assert SHARD in status["reason"]
        assert f"expected {wanted}" in status["reason"]
        assert "3 times" in status["reason"]
        assert not (hub.dest / SHARD).exists()
        assert not (hub.own / "COMPLETE.json").exists()
        hub.faults()
        assert hub.run() == 0  # the next start tries anew, and only that file
        assert hub.whole()


def test_two_agents_at_once(tmp_path: Path) -> None:
    with bed(tmp_path, {SHARD: noise(20 * PIECE)}) as hub:
        hub.faults(Rule("/cdn/*", "slow", count=0, rate=20 * PIECE))
        first = hub.start()
        wait_for((hub.own / "status.json").exists)
        second = hub.start()
        _, said = second.communicate(timeout=10)
        assert second.returncode == 7
        assert f"pid {first.pid} on" in said
        first.communicate(timeout=20)
        assert first.returncode == 0
        assert hub.whole()


def test_lock_of_a_dead_agent_is_taken_over(tmp_path: Path) -> None:
    with bed(tmp_path, {SHARD: noise(10 * PIECE)}) as hub:
        kill_at(hub, 0.2, signal.SIGKILL)
        assert json.loads((hub.own / "lock").read_text())["pid"] > 0
        assert hub.run() == 0
        assert (hub.own / "lock").read_text() == ""


def test_space_is_checked_before_the_first_byte(tmp_path: Path) -> None:
    with bed(tmp_path, {SHARD: noise(10 * PIECE)}) as hub:
        assert hub.run(free_bytes=10 * PIECE, reserve=1) == 3
        assert hub.status()["code"] == "space"
        assert "1 short" in hub.status()["reason"]
        assert not hub.served()
        assert hub.run(free_bytes=10 * PIECE, reserve=0) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_full_disk(tmp_path: Path) -> None:
    """A real file system that is too small: refused by the preallocation, nothing but parts left behind."""
    (tmp_path / "weights").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "k3g-test", str(tmp_path / "weights")], check=True)
    try:
        with bed(tmp_path, {SHARD: noise(20 * PIECE)}) as hub:
            assert hub.run(free_bytes=1 << 40) == 3
            assert hub.status()["code"] == "space"
            assert not hub.served()
    finally:
        subprocess.run(["umount", str(tmp_path / "weights")], check=True)


def test_other_revision_gives_what_it_shares(tmp_path: Path) -> None:
    files = {SHARD: noise(4 * PIECE), "config.json": b"{}", "new.safetensors": noise(PIECE, 3)}
    with bed(tmp_path, {SHARD: files[SHARD], "config.json": b"[]"}) as old:
        assert old.run() == 0
        new = next_revision(old, files)
        before = len(old.served())
        assert new.run(reuse_roots=[str(new.dest.parent)]) == 0, new.extra["stderr"]
        assert new.whole()
        assert new.status()["reused"] == 4 * PIECE
        assert new.ranges(SHARD, before) == []
        assert old.whole()


def test_changed_file_of_the_other_revision_is_not_taken(tmp_path: Path) -> None:
    with bed(tmp_path, {SHARD: noise(4 * PIECE)}) as old:
        assert old.run() == 0
        os.utime(old.dest / SHARD)
        new = next_revision(old, {SHARD: noise(4 * PIECE), "config.json": b"{}"})
        assert new.run(reuse_roots=[str(new.dest.parent)]) == 0
        assert new.whole()
        assert new.status()["reused"] == 0


def test_file_edited_after_the_seal_is_fetched_again(tmp_path: Path) -> None:
    with bed(tmp_path, {SHARD: noise(4 * PIECE), "config.json": b"{}"}) as hub:
        assert hub.run() == 0
        proven = (hub.own / "COMPLETE.json").read_text()
        with open(hub.dest / SHARD, "r+b") as file:
            file.write(b"x")
        before = len(hub.served())
        assert hub.run() == 0
        assert hub.whole()
        assert len(hub.ranges(SHARD, before)) > 0
        assert "another digest" in hub.events()
        assert (hub.own / "COMPLETE.json").read_text() != proven


def test_touched_file_is_hashed_not_fetched(tmp_path: Path) -> None:
    with bed(tmp_path, {SHARD: noise(4 * PIECE)}) as hub:
        assert hub.run() == 0
        os.utime(hub.dest / SHARD)
        before = len(hub.served())
        assert hub.run() == 0
        assert hub.whole()
        assert len(hub.served()) == before


def test_link_in_the_way_is_refused(tmp_path: Path) -> None:
    with bed(tmp_path, {"sub/" + SHARD: noise(10)}) as hub:
        (tmp_path / "elsewhere").mkdir()
        hub.own.mkdir(parents=True)
        (hub.dest / "sub").symlink_to(tmp_path / "elsewhere")
        assert hub.run() == 3
        assert "symbolic link" in hub.status()["reason"]
        assert list((tmp_path / "elsewhere").iterdir()) == []


def test_altered_manifest_is_refused(tmp_path: Path) -> None:
    with bed(tmp_path, {SHARD: noise(10)}) as hub:
        job = hub.job()
        job["manifest"]["files"][0]["size"] = 11
        hub.own.mkdir(parents=True)
        assert hub.run(manifest=job["manifest"]) == 3
        assert "not the one its id names" in hub.extra["stderr"]


def test_independent_witness_agrees(tmp_path: Path) -> None:
    """huggingface_hub's own check of a folder against the hub, on what the agent made."""
    from huggingface_hub import HfApi

    files = {SHARD: noise(3 * PIECE), "config.json": b"{}", "sub/notes.txt": b"n"}
    with bed(tmp_path, files) as hub:
        assert hub.run() == 0
        shutil.rmtree(hub.dest / ".k3stage")
        api = HfApi(endpoint=hub.running.endpoint, token=False)
        found = api.verify_repo_checksums(hub.manifest.repo, revision=hub.manifest.commit, local_dir=str(hub.dest))
        assert found.checked_count == len(files)
        assert not found.mismatches
        assert not found.missing_paths


def test_write_to_a_full_disk_is_tried_again(tmp_path: Path) -> None:
    """Blocks are reserved ahead, but not every file system can: a write without room is not the end."""
    from k3ctl.node.carrier import Carrier, NoSpace
    from k3ctl.node.engine import Engine
    from k3ctl.node.stagefolder import Folder

    with bed(tmp_path, {SHARD: noise(10)}) as hub:
        folder = Folder(str(hub.dest), hub.manifest.id)
        folder.make()
        carrier = Carrier(Engine(hub.job(), folder, threading.Event()), 0)
        full = os.open("/dev/full", os.O_WRONLY)
        try:
            with pytest.raises(NoSpace):
                carrier._write(full, 10, 0)
        finally:
            os.close(full)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_faults_end_in_the_truth(tmp_path: Path, seed: int) -> None:
    """Cuts, resets, flips, refusals and kills in random places: whole at the end, and never called whole before."""
    chance = random.Random(seed)
    files = {f"model-{i:05}-of-000006.safetensors": noise(3 * PIECE + i, i) for i in range(1, 7)}
    kinds = ("cut", "reset", "flip", "expired", "status", "wrong", "delay")
    with bed(tmp_path, files) as hub:
        rules = []
        for number in range(1, 7):
            for kind in chance.sample(kinds, 3):
                at = chance.randrange(PIECE)
                skip, count = chance.randrange(3), chance.randrange(1, 3)
                if kind != "wrong":
                    rules.append(
                        Rule(f"/cdn/*-{number:05}-of*", kind, at=at, skip=skip, count=count, seconds=0.2, status=503)
                    )
        hub.faults(*rules)
        for _ in range(40):
            agent = hub.start(connections=3)
            try:
                agent.wait(chance.uniform(0.3, 1.5))
            except subprocess.TimeoutExpired:
                agent.kill()
            agent.communicate(timeout=30)
            done = (hub.own / "COMPLETE.json").exists()
            named = list(hub.dest.glob("*.safetensors"))
            assert all(p.read_bytes() == files[p.name] for p in named)
            if done:
                break
        assert hub.whole()
