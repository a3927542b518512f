"""The journal: torn at every byte, flipped at every byte, and never believed beyond what is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from k3ctl.node import journal
from k3ctl.node.journal import Journal, decode, encode
from k3ctl.node.leases import KEPT, Ledger
from k3ctl.node.resume import replay

RECORDS: list[tuple[int, dict[str, Any]]] = [
    (journal.OPENED, {"id": "x" * 64, "boot": "b", "pid": 1, "time": "t"}),
    (journal.PIECES, {"f": 0, "a": 0, "n": 3}),
    (journal.PIECES, {"f": 1, "a": 2, "n": 1}),
    (journal.RESET, {"f": 0, "why": "digest"}),
    (journal.PIECES, {"f": 0, "a": 1, "n": 1}),
    (journal.SEALED, {"f": 1, "size": 5, "mtime_ns": 1, "inode": 2, "how": "fetched"}),
    (journal.CLOSED, {"time": "t", "why": "complete"}),
]
WHOLE = b"".join(encode(kind, body) for kind, body in RECORDS)


def test_torn_at_every_byte() -> None:
    """Whatever is left is a prefix of the records, and what is cut off is known to the byte."""
    for length in range(len(WHOLE) + 1):
        records, good = decode(WHOLE[:length])
        assert records == RECORDS[: len(records)]
        assert good == len(b"".join(encode(k, b) for k, b in records))
        assert good <= length
        assert len(records) == len(RECORDS) or length < len(WHOLE)


def test_flipped_at_every_byte() -> None:
    for at in range(len(WHOLE)):
        damaged = WHOLE[:at] + bytes([WHOLE[at] ^ 0x40]) + WHOLE[at + 1 :]
        records, good = decode(damaged)
        assert records == RECORDS[: len(records)]
        assert good <= at


def test_goes_on_after_a_torn_end(tmp_path: Path) -> None:
    path = str(tmp_path / "journal")
    for length in range(len(WHOLE)):
        Path(path).write_bytes(WHOLE[:length])
        book = Journal(path)
        kept = len(book.records)
        assert book.torn == length - len(b"".join(encode(k, b) for k, b in RECORDS[:kept]))
        book.append(journal.PIECES, {"f": 7, "a": 0, "n": 1})
        book.sync()
        book.close()
        records, torn = journal.read(path)
        assert records == [*RECORDS[:kept], (journal.PIECES, {"f": 7, "a": 0, "n": 1})]
        assert torn == 0


def test_file_full_of_zeros_and_no_file(tmp_path: Path) -> None:
    assert decode(b"\0" * 4096) == ([], 0)
    assert journal.read(str(tmp_path / "none")) == ([], 0)


@given(
    st.lists(st.tuples(st.integers(1, 5), st.dictionaries(st.text(max_size=5), st.integers())), max_size=8), st.binary()
)
def test_any_records_and_any_tail(records: list[tuple[int, dict[str, Any]]], tail: bytes) -> None:
    data = b"".join(encode(kind, body) for kind, body in records)
    found, good = decode(data + tail)
    assert found[: len(records)] == records
    assert good >= len(data)


def entries(*sizes: int) -> list[dict[str, Any]]:
    return [{"path": str(i), "size": s, "sha256": "a" * 64, "git_sha1": None} for i, s in enumerate(sizes)]


def test_replay_never_claims_more_than_the_records_say() -> None:
    for count in range(len(RECORDS) + 1):
        ledger = Ledger(entries(30, 30), 10, 1)
        sealed = replay(RECORDS[:count], ledger.files)
        claimed = [bytes(f.pieces).count(KEPT) for f in ledger.files]
        assert claimed == [[0, 0], [0, 0], [3, 0], [3, 1], [0, 1], [1, 1], [1, 0], [1, 0]][count]
        assert set(sealed) == ({1} if count >= 6 else set())


def test_replay_ignores_what_does_not_fit() -> None:
    ledger = Ledger(entries(30), 10, 1)
    odd = [(journal.PIECES, {"f": 9, "a": 0, "n": 1}), (journal.PIECES, {"f": 0, "a": 2, "n": 99}), (99, {"f": 0})]
    assert replay(odd, ledger.files) == {}
    assert list(ledger.files[0].pieces) == [0, 0, KEPT]
