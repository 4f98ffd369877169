"""Errors and failures of a group of ranks, with fakes in place of the other ranks."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chairlift.core.errors import ChairliftError, ConfigError, EngineDead, TokenOutOfRange
from chairlift.model.distributed import rank_group, rank_watch
from chairlift.model.distributed.rank_group import RankGroup
from chairlift.model.distributed.rank_messages import (
    CallFailed,
    Collect,
    Collected,
    PeersLost,
    Progress,
    RankStartFailed,
    Started,
    encode,
)
from support_process import wait_until
from support_ranks import FakeRank, start_messages


class FakeCommunicator:
    """The collectives of rank 0, as the group sees them."""

    num_calls = 12
    failure: EngineDead | None = None
    is_aborted = is_closed = False

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[RankGroup]:
    monkeypatch.setattr(rank_group, "RankProcess", FakeRank)
    monkeypatch.setattr(rank_group, "AGREEMENT_SECONDS", 0.2)
    monkeypatch.setattr(rank_group, "CAUSE_SECONDS", 0.1)
    FakeRank.made = []
    made = RankGroup()
    made.start(start_messages(3))
    made.attach(FakeCommunicator())  # type: ignore[arg-type]
    made._is_starting = False
    yield made
    made.close()
    assert all(rank.is_closed for rank in FakeRank.made)


def report(message: Any, ranks: tuple[int, ...] = (1, 2)) -> None:
    """Report for ranks, each in a thread of its own, as the group's readers do."""
    for rank in ranks:
        threading.Thread(target=FakeRank.made[rank - 1].report, args=(message,)).start()


def raising(error: Exception, first: Callable[[], None] = lambda: None) -> Callable[[], None]:
    def function() -> None:
        first()
        raise error

    return function


def test_a_call_is_sent_to_every_rank_and_returns_what_it_returns_here(group: RankGroup) -> None:
    assert group.call(Collect(), lambda: "result") == "result"
    assert [rank.frames for rank in FakeRank.made] == [[encode(Collect())]] * 2


def test_an_error_that_comes_on_every_rank_voids_the_step_only(group: RankGroup) -> None:
    error = TokenOutOfRange(9, 5)
    for call in (1, 2):
        with pytest.raises(TokenOutOfRange) as caught:
            group.call(Collect(), raising(error, lambda call=call: report(CallFailed(call, 12, "x"))))  # type: ignore
        assert caught.value is error
    assert group.call(Collect(), lambda: 3) == 3


@pytest.mark.parametrize("ranks", [(), (2,)])
def test_an_error_that_does_not_come_on_every_rank_ends_the_group(group: RankGroup, ranks: tuple[int, ...]) -> None:
    with pytest.raises(EngineDead, match=r"rank 0 failed in a step \(MemoryError.*, in which rank 1 did not fail"):
        group.call(Collect(), raising(MemoryError("none left"), lambda: report(CallFailed(1, 12, "x"), ranks)))
    assert all(rank.is_killed for rank in FakeRank.made)
    with pytest.raises(EngineDead, match="rank 0 failed in a step"):
        group.call(Collect(), lambda: None)


def test_an_error_of_ranks_that_other_programs_delay_is_waited_for(
    group: RankGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    class DelayedTimer:
        """The ranks report at its third reading, when all the time has passed, which was delay alone."""

        def __init__(self, pids: list[int | str]) -> None:
            self.pids, self.num_readings = pids, 0
            timers.append(self)

        def elapsed(self) -> float:
            self.num_readings += 1
            if self is timers[0] and self.num_readings == 3:
                report(CallFailed(1, 12, "x"))
            return 0.0

    timers: list[DelayedTimer] = []
    monkeypatch.setattr(rank_group, "UndelayedTimer", DelayedTimer)
    monkeypatch.setattr(rank_group, "AGREEMENT_SECONDS", 0.01)
    error = TokenOutOfRange(9, 5)
    with pytest.raises(TokenOutOfRange) as caught:
        group.call(Collect(), raising(error))
    assert caught.value is error and timers[0].pids == [rank.pid for rank in FakeRank.made]


def test_errors_at_different_collectives_end_the_group(group: RankGroup) -> None:
    with pytest.raises(EngineDead, match=r"in which rank 1 failed elsewhere \(IndexError\)"):
        group.call(Collect(), raising(ValueError(), lambda: report(CallFailed(1, 11, "IndexError"))))


@pytest.mark.parametrize("is_in_call", [False, True])
def test_an_error_of_another_rank_alone_ends_the_group(group: RankGroup, is_in_call: bool) -> None:
    """It comes after the call of rank 0, or while that waits in a collective until the other ranks are killed."""
    failures: list[EngineDead] = []
    group.on_failure(failures.append)

    def in_collective() -> None:
        report(CallFailed(1, 4, "OutOfMemoryError"), (2,))
        wait_until(lambda: all(rank.is_killed for rank in FakeRank.made))

    if is_in_call:
        with pytest.raises(EngineDead, match="rank 2 failed alone in a step: OutOfMemoryError"):
            group.call(Collect(), in_collective)
        assert failures == [], "the call has raised it"
    else:
        group.call(Collect(), lambda: None)
        report(CallFailed(1, 4, "OutOfMemoryError"), (2,))
        wait_until(lambda: len(failures) == 1)
        with pytest.raises(EngineDead, match="rank 2 failed alone"):
            group.check()


def test_equal_digests_pass_and_different_ones_end_the_group(group: RankGroup) -> None:
    for call in (1, 2):
        group.call(Collect(), lambda: group.add_digest(55))
        for rank in FakeRank.made:
            rank.report(Collected(call, 55))
    group.check()
    FakeRank.made[0].report(Collected(3, 55))  # before rank 0
    with pytest.raises(EngineDead, match="ranks 0, 1 sampled different tokens in one step"):
        group.call(Collect(), lambda: group.add_digest(56))


def test_the_end_of_a_process_ends_the_group_and_is_reported_once(group: RankGroup) -> None:
    failures: list[EngineDead] = []
    group.on_failure(failures.append)
    FakeRank.made[1].end("process 7 was killed")
    FakeRank.made[0].end("process 6 was killed")
    assert [str(each) for each in failures] == ["rank 2 of 3 is lost, and the engine with it: process 7 was killed"]
    assert FakeRank.made[0].is_killed
    group.on_failure(failures.append)
    assert len(failures) == 2, "a callback that comes later is called at once"


def test_a_failed_collective_reports_the_process_that_ended(group: RankGroup) -> None:
    """The end of the process may be noticed after that of its connection."""

    def lose() -> None:
        threading.Timer(0.02, lambda: FakeRank.made[0].end("process 6 ended with exit code 3")).start()

    with pytest.raises(EngineDead, match=r"rank 1 of 3 is lost.*exit code 3"):
        group.call(Collect(), raising(EngineDead("rank 0 lost the other ranks in a collective"), lose))


@pytest.mark.parametrize("has_cause", [True, False])
def test_a_rank_that_lost_the_others_is_blamed_only_if_no_process_has_ended(
    group: RankGroup, has_cause: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its report may come before the end of the process that is its cause, and before its own end."""

    def lose() -> None:
        report(PeersLost("rank 1 lost the other ranks in a collective: closed"), (1,))
        if has_cause:
            monkeypatch.setattr(rank_group, "CAUSE_SECONDS", 30.0)
            threading.Timer(0.03, lambda: FakeRank.made[1].end("process 7 was killed")).start()

    expected = r"rank 2 of 3 is lost.*process 7" if has_cause else "rank [01] lost the other ranks in a coll"
    with pytest.raises(EngineDead, match=expected) as caught:
        group.call(Collect(), raising(EngineDead("rank 0 lost the other ranks in a collective"), lose))
    assert not has_cause or (caught.value.__cause__ is None and caught.value.__suppress_context__), (
        "one message, no trace of gloo"
    )


@pytest.mark.parametrize("how", ["silent", "behind"])
def test_a_rank_that_hangs_in_a_call_ends_the_group(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 waits in its 12th collective until the ranks are killed."""
    monkeypatch.setattr(rank_group, "RankProcess", FakeRank)
    monkeypatch.setattr(rank_watch, f"{how.upper()}_SECONDS", 0.05)
    FakeRank.made = []
    group = RankGroup()
    group.start(start_messages(3, beat_seconds=0.02))
    for rank in FakeRank.made:
        rank.report(Started())
    group.wait_until_started()
    group.attach(FakeCommunicator())  # type: ignore[arg-type]

    def wait() -> None:
        def is_killed() -> bool:
            for rank in FakeRank.made:
                if how == "behind" or rank.rank == 1:
                    rank.report(Progress(13 - rank.rank))
            return FakeRank.made[1].is_killed

        FakeRank.made[1].report(Progress(11))
        wait_until(is_killed)

    message = {"silent": "has not reported for", "behind": "has hung for"}[how]
    with pytest.raises(EngineDead, match=rf"rank 2 of 3 \(process 1002\) {message} .* s.*, the limit is 0.05 s"):
        group.call(Collect(), wait)
    group.close()


def test_a_rank_may_be_silent_while_no_call_runs(group: RankGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_watch, "SILENT_SECONDS", -1.0)
    ticked, pause = threading.Event(), group._watch.pause
    monkeypatch.setattr(group._watch, "pause", lambda: (pause(), ticked.set()))
    FakeRank.made[0].report(Progress(3))
    assert ticked.wait(30)
    group.check()


def test_a_failed_collective_in_a_rows_error_ends_the_group(group: RankGroup) -> None:
    communicator = group._communicator
    assert communicator is not None

    def row_fails() -> None:
        communicator.failure = EngineDead("rank 0 lost the other ranks in a collective: timeout")

    with pytest.raises(EngineDead, match="in a collective: timeout"):
        group.call(Collect(), row_fails)


@pytest.mark.parametrize("error", [ConfigError("no such device", option="device"), EngineDead("broken")])
def test_the_error_of_a_start_is_raised_with_its_type(group: RankGroup, error: ChairliftError) -> None:
    FakeRank.made[0].report(Started())
    FakeRank.made[1].report(RankStartFailed.of(error))
    with pytest.raises(type(error), match=error.message):
        group.wait_until_started()


def test_a_rank_that_does_not_start_in_time_ends_the_group(group: RankGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_group, "START_SECONDS", 0.05)
    FakeRank.made[0].report(Started())
    with pytest.raises(EngineDead, match=r"rank 2 of 3 \(process 1002\) did not start within 0.05 s"):
        group.wait_until_started()


def test_after_the_close_the_end_of_a_process_is_no_failure(group: RankGroup) -> None:
    group.close()
    assert isinstance(group._communicator, FakeCommunicator) and group._communicator.is_closed
    FakeRank.made[0].end("process 6 ended with exit code 0")
    group.check()
