"""Leases on pieces: sizes, order, giving back, whole files, and the byte counts shown to people."""

from __future__ import annotations

from typing import Any

import pytest

from k3ctl.node.engine import runs
from k3ctl.node.leases import Lease, Ledger


def ledger(*sizes: int, connections: int = 1, piece: int = 10) -> Ledger:
    entries: list[dict[str, Any]] = [
        {"path": f"f{i}", "size": size, "sha256": "a" * 64, "git_sha1": None} for i, size in enumerate(sizes)
    ]
    return Ledger(entries, piece, connections)


def take(book: Ledger, *, whole: bool = False) -> Lease:
    lease = book.take(whole=whole)
    assert lease is not None
    return lease


def finish(book: Ledger, lease: Lease) -> None:
    before, lease.at = lease.passed(), lease.end
    book.wrote(lease, before)
    book.give_back(lease)


@pytest.mark.parametrize(("size", "pieces"), [(0, 0), (1, 1), (9, 1), (10, 1), (11, 2), (20, 2), (21, 3)])
def test_each_byte_is_leased_once(size: int, pieces: int) -> None:
    book = ledger(size)
    assert len(book.files[0].pieces) == pieces
    spans = []
    while (lease := book.take(whole=False)) is not None:
        spans.append((lease.at, lease.end))
        finish(book, lease)
    assert [at for at, _ in spans] == [0, *(end for _, end in spans[:-1])][: len(spans)]
    assert sum(end - at for at, end in spans) == size
    assert book.done_bytes() == size


def test_leases_are_long_first_and_short_at_the_end() -> None:
    book = ledger(1000, connections=2)
    lengths = []
    while (lease := book.take(whole=False)) is not None:
        lengths.append(lease.count)
    assert lengths[0] == 100 // 8
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] == 1
    assert sum(lengths) == 100


def test_given_back_in_the_middle_of_a_piece() -> None:
    book = ledger(1000)
    lease = take(book)
    lease.at = 25
    book.wrote(lease, 0)
    assert book.done_bytes() == 25
    book.give_back(lease)
    assert book.done_bytes() == 20
    assert take(book).at == 20


def test_whole_files_only_where_nobody_else_is() -> None:
    book = ledger(30, 20)
    part = take(book)
    whole = take(book, whole=True)
    assert (whole.file.path, whole.at, whole.end, whole.whole) == ("f1", 0, 20, True)
    assert book.take(whole=True) is None
    book.give_back(part)
    assert take(book, whole=True).file.path == "f0"


def test_late_give_back_does_not_touch_a_newer_lease() -> None:
    """A file that failed its digest is leased again while the old carrier still closes its connection."""
    book = ledger(10)
    old = take(book)
    old.at = old.end
    book.wrote(old, 0)
    book.files[0].void()
    new = take(book)
    book.give_back(old)
    assert book.take(whole=False) is None
    finish(book, new)
    assert book.done_bytes() == 10


def test_pieces_to_keep_know_their_round() -> None:
    book = ledger(20)
    finish(book, take(book))
    finish(book, take(book))
    (file, rounds, pieces), *more = book.to_keep()
    assert (file.number, rounds, pieces, more) == (0, 0, [0, 1], [])
    assert book.to_keep() == []


def test_hashing_follows_the_prefix_only() -> None:
    book = ledger(30)
    first, second = take(book), take(book)
    finish(book, second)
    assert book.to_hash() is None
    finish(book, first)
    file = book.to_hash()
    assert file is book.files[0]
    assert file.prefix() == 20
    assert book.to_hash() is None  # one at a time
    book.hashed(file)


def test_runs() -> None:
    assert runs([]) == []
    assert runs([3]) == [[3, 1]]
    assert runs([0, 1, 2, 5, 7, 8]) == [[0, 3], [5, 1], [7, 2]]
