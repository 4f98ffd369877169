"""Which rank the watch blames, and what it forgives."""

import pytest

from chairlift.model.distributed import rank_watch
from chairlift.model.distributed.rank_watch import RankWatch


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> RankWatch:
    """Three ranks, the processes 11 and 12 among them, which have called 5 collectives."""
    monkeypatch.setattr(rank_watch, "SILENT_SECONDS", 3.0)
    monkeypatch.setattr(rank_watch, "START_SILENT_SECONDS", 7.0)
    monkeypatch.setattr(rank_watch, "BEHIND_SECONDS", 5.0)
    made = RankWatch()
    for rank in (1, 2):
        made.add(rank, 10 + rank)
        made.report(rank, 5)
    assert made.tick(1.0, 5) is None
    return made


def reporting(watch: RankWatch, ranks: dict[int, int], ticks: int, own: int | None) -> list[str]:
    """Report the collectives of ranks before each tick; returns the errors of the ticks."""
    errors = []
    for _ in range(ticks):
        for rank, num_collectives in ranks.items():
            watch.report(rank, num_collectives)
        errors.append(watch.tick(1.0, own))
    return [str(error) for error in errors if error is not None]


def test_ranks_that_report_and_wait_with_rank_0_are_not_lost(watch: RankWatch) -> None:
    assert reporting(watch, {1: 5, 2: 5}, 100, 5) == []


def test_a_silent_rank_is_named_with_its_process_the_seconds_and_the_limit(watch: RankWatch) -> None:
    assert reporting(watch, {1: 5}, 3, 5) == []
    (error,) = reporting(watch, {1: 5}, 1, 5)
    assert error.startswith(
        "rank 2 of 3 (process 12) has not reported for 4.0 s, the limit is 3 s: the process is stop"
    )


def test_a_rank_may_be_silent_for_longer_while_the_ranks_start(watch: RankWatch) -> None:
    assert reporting(watch, {1: 5}, 7, None) == []
    (error,) = reporting(watch, {1: 5}, 1, None)
    assert error.startswith("rank 2 of 3 (process 12) has not reported for 8.0 s, the limit is 7 s: the process is")


@pytest.mark.parametrize("own", [None, 5])
def test_a_rank_may_be_silent_before_its_first_report_while_rank_0_waits_for_none_and_while_the_machine_pauses(
    watch: RankWatch, own: int | None
) -> None:
    watch.add(3, 13)
    assert reporting(watch, {1: 5, 2: 5, 3: 0}, 0, own) == []
    for _ in range(3):
        assert reporting(watch, {1: 5}, 3, own) == []
        watch.pause()
    watch.report(2, 5)
    assert watch.tick(0.1, own) is None
    assert watch.tick(3600.0, own) is None, "one tick counts for 2 s at most"
    watch.report(4, 0)  # its process is about to be added


def test_the_rank_that_hangs_is_blamed_and_not_those_that_wait_for_it(watch: RankWatch) -> None:
    assert reporting(watch, {1: 9, 2: 8}, 5, 9) == []
    (error,) = reporting(watch, {1: 9, 2: 8}, 1, 9)
    assert error.startswith(
        "rank 2 of 3 (process 12) has hung for 6.0 s in a step in which the other ranks wait for it"
    )
    assert "the limit is 5 s" in error


def test_a_rank_that_calls_collectives_does_not_hang(watch: RankWatch) -> None:
    for num_collectives in range(6, 12):
        assert reporting(watch, {1: 20, 2: num_collectives}, 4, 20) == []


def test_while_the_ranks_start_none_is_behind(watch: RankWatch) -> None:
    assert reporting(watch, {1: 5, 2: 0}, 50, None) == []
