"""Room on a node's disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from k3ctl.node.leases import Ledger
from k3ctl.node.space import NETWORK, file_system, free_bytes, needed, preallocate
from k3ctl.node.stagefolder import Folder

MOUNTS = """overlay / overlay rw 0 0
/dev/nvme0n1 /srv ext4 rw 0 0
filer:/vol /srv/k3ctl/weights nfs4 rw 0 0
/dev/sdb /data\\040disk xfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/opt", "overlay"), ("/srv/x", "ext4"), ("/srv/k3ctl/weights/a/b", "nfs4"), ("/srv/k3ctl/weightsmore", "ext4")],
)
def test_file_system_of_a_path(tmp_path: Path, path: str, kind: str) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    assert file_system(path, str(mounts)) == kind
    assert file_system("/data disk/x", str(mounts)) == "xfs"
    assert "nfs4" in NETWORK
    assert file_system(path, str(tmp_path / "none")) == ""


def entries(*sizes: int) -> list[dict[str, Any]]:
    return [{"path": str(i), "size": size, "sha256": "a" * 64, "git_sha1": None} for i, size in enumerate(sizes)]


def test_what_parts_hold_already_is_not_needed_again(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "dest"), "x" * 64)
    folder.make()
    files = Ledger(entries(1 << 20, 0, 1 << 20), 1 << 16, 1).files
    assert needed(folder, files, 5) == (2 << 20) + 5
    assert preallocate(folder.part(0), 1 << 20) == "fallocate"
    assert Path(folder.part(0)).stat().st_size == 1 << 20
    assert needed(folder, files, 5) == (1 << 20) + 5
    assert preallocate(folder.part(0), 1 << 20) is None
    assert preallocate(folder.part(1), 0) is None
    for file in files:
        file.sealed = {"size": file.size}
    assert needed(folder, files, 5) == 0


def test_sparse_part_of_full_size_is_reserved_after_all(tmp_path: Path) -> None:
    part = tmp_path / "0.part"
    with part.open("wb") as file:
        file.truncate(1 << 20)
    assert preallocate(str(part), 1 << 20) == "fallocate"
    assert part.stat().st_blocks * 512 >= 1 << 20


def test_free_bytes_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert free_bytes(str(tmp_path / "a" / "b")) > 0
    assert free_bytes("/") > 0
