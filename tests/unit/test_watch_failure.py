"""Which rank failed first: own failures before noticed ones, by the controller's clock, one per round."""

from __future__ import annotations

from dataclasses import replace

from k3ctl.watch.failure import failures, last_failure
from k3ctl.watch.rank_status import Attempt, RankStatus, unreachable

BLANK = Attempt(1, "10.0.0.1:5000", 100.0, 200.0, "gang", "ended by the gang", (), 200.0, "attempt-1.log")


def rank(number: int, *attempts: Attempt) -> RankStatus:
    return replace(unreachable(f"n{number}", number, ""), state="up", attempts=attempts)


def died(at: float, reason: str = "worker process VLLM::Worker (pid 7) died", **other: object) -> Attempt:
    return replace(BLANK, cause="worker", reason=reason, failed_at=at, **other)  # type: ignore[arg-type]


def test_nothing_failed() -> None:
    assert last_failure(()) is None
    assert last_failure([rank(0, BLANK), rank(1, replace(BLANK, cause="stop"))]) is None


def test_the_first_by_time_is_named_with_the_others() -> None:
    found = last_failure([rank(0, died(201.0)), rank(1, died(200.5)), rank(2, BLANK)])
    assert found is not None
    assert (found.rank, found.node, found.others) == (1, "n1", (0,))


def test_a_rank_that_noticed_its_peer_is_not_the_cause_even_when_it_wrote_first() -> None:
    noticed = died(
        200.1,
        "worker process VLLM::EngineCore died; engine ended with status 0: RuntimeError: Read error "
        "[10.78.0.12]:26757: Connection reset by peer. This is typically caused by a remote worker",
    )
    found = last_failure([rank(0, noticed), rank(1, died(200.9))])
    assert found is not None
    assert (found.rank, found.others) == (1, (0,))


def test_when_all_only_noticed_the_first_of_them_is_named() -> None:
    words = "NCCL error: ncclRemoteError: connection closed by remote peer"
    found = last_failure([rank(0, died(200.3, words)), rank(1, died(200.2, words))])
    assert found is not None
    assert found.rank == 1


def test_a_lost_node_comes_last() -> None:
    lost = replace(BLANK, cause="lost", reason="the node went away", failed_at=150.0)
    found = last_failure([rank(0, lost), rank(1, died(200.9, "Connection reset by peer"))])
    assert found is not None
    assert found.rank == 1


def test_every_round_is_a_failure_of_its_own() -> None:
    second = died(400.0, round="10.0.0.1:6000", number=2)
    assert [f.rank for f in failures([rank(0, second), rank(1, died(200.0))])] == [1, 0]


def test_attempts_that_never_met_are_rounds_of_their_own() -> None:
    early = replace(died(10.0), round=":", cause="start")
    assert len(failures([rank(0, early), rank(1, replace(early, failed_at=20.0))])) == 2


def test_a_host_that_went_down_is_the_cause_of_what_the_others_noticed() -> None:
    noticed = died(200.5, "engine ended with status 0: RuntimeError: Connection closed by peer [10.78.0.12]:12934")
    down = replace(BLANK, cause="stop", reason="stopped by the operator", ended=199.0, failed_at=199.0)
    found = last_failure([rank(0, noticed), rank(1, down)])
    assert found is not None
    assert (found.rank, found.cause, found.others) == (1, "stop", (0,))
    assert "the host went down" in found.reason
    own = last_failure([rank(0, died(200.5)), rank(1, down)])
    assert own is not None
    assert own.rank == 0
