"""RequestMover: when waiting requests move, which ones it sees, and how often a replica gets some."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from chairlift.core.clock import FakeClock
from chairlift.core.load_report import ReplicaState
from chairlift.router.endpoint import Endpoint
from chairlift.router.health.config import HealthConfig
from chairlift.router.health.replica_load import ReplicaLoad
from chairlift.router.proxy.request_mover import RequestMover, queue_of
from chairlift.router.replica_set import ReplicaSet
from chairlift.router.replicas.move_decision import READY_SECONDS, ROUND_SECONDS, SETTLE_SECONDS, ReplicaQueue

A, B, C = "http://a", "http://b", "http://c"


@dataclass(eq=False)
class WaitingRequest:
    """Waits at a replica until it moves."""

    waiting_place: tuple[str, str, float] | None
    moves: list[str] = field(default_factory=list)

    def move(self, replica_id: str) -> None:
        self.moves.append(replica_id)
        self.waiting_place = None


class Pool:
    """The replicas a and b, of which a has a queue, and c, which is drained; `run_later` runs what was put off."""

    def __init__(self, *, models: tuple[str, ...] = ("m",)) -> None:
        self.clock = FakeClock()
        self.set = ReplicaSet(HealthConfig(has_active_probes=False, slow_start_seconds=30.0))
        self.set.update([Endpoint(url=url, models=models) for url in (A, B, C)], 0.0)
        self.set.drain(C, 0.0)
        self.later: list[tuple[float, Callable[[], object]]] = []
        self.requests: set[WaitingRequest] = set()
        self.mover = RequestMover(
            self.set, self.requests, self.clock.now, lambda seconds, call: self.later.append((seconds, call))
        )  # fmt: skip
        self.set.listeners.append(self.mover)
        self.report(A, running=4, waiting=12, wait=9.0)
        self.report(B, running=1)
        self.report(C)

    def report(self, url: str, *, running: int = 0, waiting: int = 0, wait: float = 0.0) -> None:
        load = ReplicaLoad(
            at_seconds=self.clock.now(), state=ReplicaState.READY, incarnation="1", running_requests=running,
            waiting_requests=waiting, expected_wait_seconds=wait, max_running_requests=64,
        )  # fmt: skip
        self.set.record_load(self.set._replicas[url], load, self.clock.now())

    def add(self, count: int, url: str = A, model: str = "m") -> list[WaitingRequest]:
        made = [WaitingRequest((url, model, float(number))) for number in range(count)]
        self.requests.update(made)
        return made

    def undrain(self, url: str = C) -> None:
        self.set.undrain(url, self.clock.now())

    def run_later(self) -> None:
        later = self.later[:]
        self.later.clear()
        for seconds, call in later:
            self.clock.advance(seconds)
            call()


def moved(requests: list[WaitingRequest]) -> list[int]:
    return [number for number, each in enumerate(requests) if each.moves]


def test_waiting_requests_move_to_a_replica_that_became_ready_at_its_full_weight() -> None:
    pool = Pool()
    waiting, elsewhere = pool.add(12), pool.add(3, B)
    pool.undrain()
    assert [seconds for seconds, _ in pool.later] == [SETTLE_SECONDS] and not moved(waiting)
    pool.run_later()
    assert moved(waiting) == [1, 3, 4, 5, 7, 8, 9, 11] and not moved(elsewhere)
    assert {each.moves[0] for each in waiting if each.moves} == {C}


def test_what_cannot_move_stays() -> None:
    pool = Pool()
    for each in pool.add(12):
        each.waiting_place = None
    pool.undrain()
    pool.run_later()
    assert not any(each.moves for each in pool.requests)


def test_a_replica_that_is_gone_again_or_serves_another_model_gets_nothing() -> None:
    pool = Pool()
    waiting = pool.add(12)
    pool.undrain()
    pool.set.drain(C, 0.0)
    pool.run_later()
    assert not moved(waiting)
    pool = Pool()
    others = pool.add(12, model="n")
    pool.undrain()
    pool.run_later()
    assert not moved(others)


def test_more_requests_follow_with_newer_reports_until_the_replica_is_not_new_any_more() -> None:
    pool = Pool()
    pool.report(A, running=4)  # from before the burst
    waiting = pool.add(12)
    pool.undrain()
    pool.run_later()
    assert not moved(waiting) and [seconds for seconds, _ in pool.later] == [ROUND_SECONDS]
    pool.report(A, running=4, waiting=12, wait=9.0)
    pool.run_later()
    assert len(moved(waiting)) == 8
    num_rounds = 2
    while pool.later:
        num_rounds += 1
        pool.report(A)
        pool.report(C)
        pool.run_later()
    assert num_rounds * ROUND_SECONDS == pytest.approx(READY_SECONDS, abs=2 * ROUND_SECONDS)


def test_replicas_that_become_ready_together_have_one_round_and_a_later_one_does_not_wait_for_the_next() -> None:
    pool = Pool()
    for _ in range(3):
        pool.undrain()
        pool.set.drain(C, 0.0)
    assert [seconds for seconds, _ in pool.later] == [SETTLE_SECONDS]
    pool.run_later()
    pool.undrain()
    waiting = pool.add(12)
    assert [seconds for seconds, _ in pool.later] == [ROUND_SECONDS, SETTLE_SECONDS]
    pool.later.reverse()
    pool.run_later()
    assert moved(waiting) and [seconds for seconds, _ in pool.later] == [ROUND_SECONDS], "the later one was replaced"


def test_after_the_end_nothing_moves() -> None:
    pool = Pool()
    waiting = pool.add(12)
    pool.undrain()
    pool.mover.close()
    pool.run_later()
    assert not moved(waiting) and not pool.later


def test_requests_of_two_models_fill_a_replica_once() -> None:
    pool = Pool(models=("m", "n"))
    one, two = pool.add(6), pool.add(6, model="n")
    pool.undrain()
    pool.run_later()
    assert len(moved(one)) + len(moved(two)) <= 8 and moved(one) and moved(two)


def test_what_is_known_of_a_replica() -> None:
    pool = Pool()
    statuses = {each.replica_id: each for each in pool.set.statuses(0.0)}
    assert queue_of(statuses[A]) == ReplicaQueue(
        replica_id=A, open_requests=16, waiting_requests=12, free_places=48, expected_wait_seconds=9.0
    )
    assert queue_of(statuses[B], 1) == ReplicaQueue(replica_id=B, open_requests=2, free_places=62)
    late = {each.replica_id: each for each in pool.set.statuses(60.0)}
    assert queue_of(late[A]) == ReplicaQueue(replica_id=A), "an old report says nothing"
