"""The cluster's folder: secrets stay private, notes are replaced whole, old runs go."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from k3ctl.edge import store as edge_store
from k3ctl.edge.store import FileStore, cluster_dir, write_private


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_secret_is_made_once_kept_and_never_printed(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    assert store.secret("api_key") is None
    made = store.secret("api_key", lambda: "k3-abc")
    again = FileStore(tmp_path).secret("api_key", lambda: "other")
    assert made is not None
    assert again is not None
    assert made.reveal() == again.reveal() == "k3-abc"
    assert f"{made} {made!r}" == "*** ***"
    assert mode(tmp_path / "secrets" / "api_key") == 0o600
    assert mode(tmp_path / "secrets") == 0o700


def test_notes_and_run_files(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    assert store.note("x") is None
    store.keep("x", "1")
    store.keep("x", "2")
    assert store.note("x") == "2"
    assert not (tmp_path / "runs").exists()
    store.write("plan.json", "{}")
    assert (tmp_path / "runs" / "latest" / "plan.json").read_text() == "{}"
    assert mode(store.run_dir) == 0o700


def test_old_runs_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_store, "KEPT_RUNS", 3)
    for _ in range(5):
        FileStore(tmp_path).write("a", "b")
    runs = [p for p in (tmp_path / "runs").iterdir() if not p.is_symlink()]
    assert len(runs) == 3
    assert (tmp_path / "runs" / "latest").resolve() == max(runs)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_private(path, b"old")
    with pytest.raises(TypeError):
        write_private(path, "text")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_the_state_folder_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert cluster_dir("lab") == tmp_path / "k3ctl" / "lab"
    assert mode(cluster_dir("lab")) == 0o700
