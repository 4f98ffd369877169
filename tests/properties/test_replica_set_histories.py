"""ReplicaSet over seeded histories: counts return to zero, half is ejected at most, ejected ones get nothing."""

import logging
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from chairlift.core.load_report import ReplicaState
from chairlift.router.endpoint import Endpoint, ReplicaKind
from chairlift.router.health.breaker import HealthOutcome
from chairlift.router.health.config import HealthConfig
from chairlift.router.health.health_state import EJECTION_CAUSES, HealthState
from chairlift.router.health.replica_load import parse_load
from chairlift.router.health.served_models import ServedModels
from chairlift.router.policies.routing_request import RoutingRequest
from chairlift.router.replica_set import ReplicaSet
from chairlift.router.replicas.reservation import Reservation
from support_replica_set import SeededPolicy, TransitionLog, probed, url
from support_shares import FULL

NUM_HISTORIES, NUM_PARTS, NUM_STEPS = 10_000 if FULL else 150, 2, 120
MODELS = ("m", "n")


class History:
    """One seeded run of a replica set: requests, faults, probes, membership and administration in any order."""

    def __init__(self, seed: int, *, outcomes: tuple[HealthOutcome, ...] = tuple(HealthOutcome)) -> None:
        self.random = Random(seed)
        self.set = ReplicaSet(HealthConfig(has_active_probes=self.random.random() < 0.5))
        self.log = TransitionLog()
        self.set.listeners.append(self.log)
        self.policy = SeededPolicy(Random(seed))
        self.now = 0.0
        self.open: list[Reservation] = []
        self.all: list[Reservation] = []
        self.num_picks_of_ejected = 0
        self._outcomes = outcomes
        self._weak = self.random.choice("abcdefg")  # a replica that fails more often than the others
        self.update()

    def run(self) -> None:
        """Take the steps, and check after each one."""
        steps = [
            (self.request, 60), (self.finish, 60), (self.report, 4), (self.probe, 8), (self.wait, 12), (self.update, 1),
            (self.administrate, 1), (self.eject_for_another_router, 1),
        ]  # fmt: skip
        for step in self.random.choices(
            [step for step, _ in steps], [weight for _, weight in steps], k=NUM_STEPS
        ):  # fmt: skip
            step()
            self.check()

    # -- steps -----------------------------------------------------------------------------------------------------

    def request(self) -> None:
        model = self.random.choice((*MODELS, "", "unknown"))
        excluded = [url(each) for each in "abcdefg" if self.random.random() < 0.15]
        before = self.states()  # ends ejections that are over, as the pick does
        request = RoutingRequest(prompt_tokens=self.random.randrange(1000))
        reservation = self.set.pick(request, model, self.policy, excluded, self.now)
        if reservation is None:
            return
        assert reservation.replica_id not in excluded
        state = before[reservation.replica_id]
        assert state not in {HealthState.REMOVED, HealthState.DRAINED}
        others = {each.state for each in self.set.statuses(self.now) if self.serves(each.models, model) and each.weight}
        if state is not HealthState.HEALTHY and not reservation.is_trial:
            assert HealthState.HEALTHY not in others, f"{state} was picked"
            self.num_picks_of_ejected += state is HealthState.EJECTED
        if reservation.is_trial:
            assert state is HealthState.PROBING
        self.open.append(reservation)
        self.all.append(reservation)

    def serves(self, models: tuple[str, ...], model: str) -> bool:
        if not model:
            return True
        return model in models if model in self.set.models else not models

    def finish(self) -> None:
        if not self.open:
            return
        reservation = self.open.pop(self.random.randrange(len(self.open)))
        is_weak = reservation.replica_id == url(self._weak)
        with reservation:
            if self.random.random() < 0.5:
                reservation.record_first_token(0.5 if is_weak else 0.01, self.now)
            if self.random.random() < 0.9:
                weights = [9 if is_weak and outcome is HealthOutcome.FAULT else 1 for outcome in self._outcomes]
                reservation.record(self.random.choices(self._outcomes, weights)[0], self.now)
            if self.random.random() < 0.2:
                reservation.release()
        for late in self.random.sample(self.all, 1):  # more words about a request that may have ended
            late.record(self.random.choice(self._outcomes), self.now) if late.is_released else None

    def report(self) -> None:
        if not self.open:
            return
        instance = self.random.choice(("", "p1", "p1", "p1", "p2"))
        state = self.random.choice((*ReplicaState, *["ready"] * 40, "nonsense"))
        header = f"state={state};instance={instance};running={self.random.randrange(9)}"
        self.random.choice(self.open).record_load_header(header, self.now)

    def probe(self) -> None:
        models = ServedModels(names=self.random.choice((("m",), MODELS)), adapters=frozenset(), fingerprints={})
        load = parse_load({"instance_id": self.random.choice(("p1", "p2"))}, self.now)
        for name in self.random.sample("abcdefg", 4):
            result = probed(
                is_success=self.random.random() < 0.7, kind=ReplicaKind.CHAIRLIFT,
                load=load if self.random.random() < 0.1 else None,
                models=models if self.random.random() < 0.2 else None,
            )  # fmt: skip
            self.set.apply_probe(url(name), result, self.now)

    def wait(self) -> None:
        self.now += self.random.choice((0.1, 1.0, 5.0, 31.0, 700.0))
        self.set.tick(self.now)

    def update(self) -> None:
        names = self.random.sample("abcdefg", self.random.choice((0, 1, 2, 3, 4, 4, 5, 5, 6, 7)))
        choose = self.random.choice
        snapshot = [
            Endpoint(url=url(each), models=choose(((), ("m",), MODELS, MODELS)), weight=choose((0.0, 1.0, 1.0, 2.0)))
            for each in names
        ]
        self.set.update(snapshot, self.now)

    def administrate(self) -> None:
        if self.set.endpoints:
            replica_id = self.random.choice(list(self.set.endpoints))
            self.random.choice([self.set.drain, self.set.undrain])(replica_id, self.now)
            self.set.set_weight(replica_id, self.random.choice((None, 0.0, 3.0)))

    def eject_for_another_router(self) -> None:
        self.set.eject_by_other_router(url(self.random.choice("abcdefg")), 20.0, "test", self.now)

    # -- checks ----------------------------------------------------------------------------------------------------

    def states(self) -> dict[str, HealthState]:
        return {status.replica_id: status.state for status in self.set.statuses(self.now)}

    def check(self) -> None:
        statuses = self.set.statuses(self.now)
        num_open = Counter(reservation.replica_id for reservation in self.open)
        assert {each.replica_id: each.open_requests for each in statuses if each.open_requests} == num_open
        pools = [[each for each in statuses if model in each.models] for model in self.set.models]
        pools.append([each for each in statuses if not each.models])
        for pool in pools:
            members = [each for each in pool if each.state is not HealthState.REMOVED]
            ejected = [each for each in members if each.state in {HealthState.EJECTED, HealthState.PROBING}]
            assert 2 * len(ejected) <= len(members)
        for each in self.set.candidates("", [], self.now):
            assert 0 < each.weight <= 3 and each.waiting_tokens >= 0

    def end(self) -> None:
        """Release what is open, and check that nothing is left."""
        for reservation in self.open:
            reservation.release()
        self.open.clear()
        statuses = self.set.statuses(self.now)
        assert all(status.open_requests == 0 and status.state is not HealthState.REMOVED for status in statuses)
        self.now += 1000.0  # reports are too old to count
        for model in ("", *self.set.models):
            assert all(each.waiting_tokens == 0 for each in self.set.candidates(model, [], self.now))
        last: dict[str, HealthState] = {}
        for transition in self.log.transitions:
            assert transition.old is not transition.new
            assert transition.old is last.get(transition.replica_id, HealthState.REMOVED), "no change is left out"
            last[transition.replica_id] = transition.new
            if transition.new is HealthState.EJECTED and transition.old in {HealthState.HEALTHY, HealthState.PROBING}:
                assert transition.cause in EJECTION_CAUSES


@pytest.fixture(autouse=True)
def _no_log() -> Iterator[None]:
    """Keep the log of hundreds of histories out of the time and of the report of a failure."""
    log = logging.getLogger("chairlift.router")
    level = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(level)


@pytest.mark.share(1)
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_histories_keep_the_rules(part: int) -> None:
    causes: Counter[str] = Counter()
    num_picks_of_ejected = 0
    for seed in range(part, NUM_HISTORIES, NUM_PARTS):
        history = History(seed)
        history.run()
        history.end()
        causes.update(each.cause for each in history.log.transitions)
        num_picks_of_ejected += history.num_picks_of_ejected
    assert min(causes[each] for each in ("consecutive_faults", "trial", "recovery_timeout", "restart", "probes")) > 0
    assert num_picks_of_ejected > 0, "panic mode is among the histories"


@pytest.mark.share(1)
@pytest.mark.parametrize("part", range(2))
def test_histories_without_faults_eject_nothing_by_outcomes(part: int) -> None:
    for seed in range(part, NUM_HISTORIES // 6, 2):
        history = History(seed, outcomes=(HealthOutcome.NEUTRAL, HealthOutcome.NEUTRAL, HealthOutcome.SUCCESS))
        history.run()
        history.end()
        causes = {each.cause for each in history.log.transitions if each.new is HealthState.EJECTED}
        assert not causes & {"consecutive_faults", "error_share"}
        ends = [each for each in history.log.transitions if each.cause == "trial"]
        assert all(each.new is not HealthState.EJECTED for each in ends), "no trial fails by a 4xx"


def test_a_seed_replays_a_history() -> None:
    first, second = History(7), History(7)
    first.run()
    second.run()
    assert first.log.transitions == second.log.transitions and first.log.transitions
