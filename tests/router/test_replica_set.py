"""ReplicaSet: membership, candidates, ejections, panic mode, drains, probes and models."""

import logging

import pytest

from chairlift.core.errors import ConfigError, NotFound
from chairlift.core.load_report import ReplicaState
from chairlift.router.endpoint import Endpoint, ReplicaKind
from chairlift.router.health.breaker import HealthOutcome
from chairlift.router.health.config import HealthConfig
from chairlift.router.health.health_state import HealthState, Transition
from chairlift.router.health.replica_load import ReplicaLoad
from chairlift.router.health.served_models import ServedModels
from chairlift.router.replica_set import ReplicaSet
from support_replica_set import REQUEST, FirstPolicy, TransitionLog, endpoints, new_set, pick, probed, states, url


def candidate_names(replica_set: ReplicaSet, now: float = 0.0, *, model: str = "m", excluded: str = "") -> str:
    return "".join(each.replica_id[7] for each in replica_set.candidates(model, [*map(url, excluded)], now))


def fail(replica_set: ReplicaSet, name: str, now: float = 0.0, times: int = 3) -> None:
    for _ in range(times):
        with pick(replica_set, now, only=name) as reservation:
            reservation.record(HealthOutcome.FAULT, now)


# -- membership --------------------------------------------------------------------------------------------------------


def test_snapshots_add_change_and_remove() -> None:
    replica_set, log = new_set("cab")
    assert candidate_names(replica_set) == "abc", "in order of their ids"
    changes: list[None] = []
    replica_set.membership_listeners.append(lambda: changes.append(None))
    replica_set.update(endpoints("bcd"), 1.0)
    assert candidate_names(replica_set) == "bcd" and len(changes) == 1
    assert log.drain() == [("a", "removed", "removed"), ("d", "healthy", "added")]
    replica_set.update([Endpoint(url=url("b"), weight=5.0, models=("m",)), *endpoints("bcd")], 2.0)
    assert replica_set.candidates("m", [], 2.0)[0].weight == 5.0, "of two with one URL the first counts"
    assert log.drain() == [] and len(changes) == 1
    replica_set.update([], 3.0)
    assert candidate_names(replica_set) == "" and replica_set.pick(REQUEST, "m", FirstPolicy(), [], 3.0) is None


def test_a_listener_finds_the_new_set() -> None:
    replica_set, _ = new_set("ab")
    seen: list[str] = []

    class Reader:
        def on_transition(self, transition: Transition) -> None:
            seen.append(candidate_names(replica_set, 1.0))

    replica_set.listeners.append(Reader())
    replica_set.update(endpoints("bc"), 1.0)
    assert seen == ["bc", "bc"]


def test_a_removed_replica_keeps_its_open_requests_until_they_end() -> None:
    replica_set, _ = new_set("ab")
    first, second = pick(replica_set, only="a"), pick(replica_set, only="a")
    replica_set.update(endpoints("b"), 1.0)
    assert candidate_names(replica_set) == "b"
    assert states(replica_set) == {"a": HealthState.REMOVED, "b": HealthState.HEALTHY}
    first.release()
    assert replica_set.statuses(1.0)[-1].open_requests == 1
    second.record(HealthOutcome.FAULT, 1.0)
    second.release()
    assert states(replica_set) == {"b": HealthState.HEALTHY}


def test_a_replica_that_comes_back_brings_its_open_requests_and_nothing_else() -> None:
    replica_set, log = new_set("ab")
    replica_set.drain(url("a"), 0.0)
    replica_set.undrain(url("a"), 0.0)
    old = [pick(replica_set, only="a") for _ in range(3)]
    replica_set.set_weight(url("a"), 7.0)
    replica_set.update(endpoints("b"), 1.0)
    log.drain()
    replica_set.update(endpoints("ab"), 2.0)
    assert log.drain() == [("a", "healthy", "added")]
    (status, _) = replica_set.statuses(2.0)
    assert (status.open_requests, status.weight, status.state) == (3, 1.0, HealthState.HEALTHY)
    for reservation in old:
        reservation.record(HealthOutcome.FAULT, 2.0)
        reservation.release()
    (status, _) = replica_set.statuses(2.0)
    assert (status.open_requests, status.state) == (0, HealthState.HEALTHY), "old faults do not count"


# -- ejection ----------------------------------------------------------------------------------------------------------


def test_three_faults_eject_and_one_trial_returns() -> None:
    replica_set, log = new_set("abc")
    fail(replica_set, "a", times=2)
    assert candidate_names(replica_set) == "abc"
    fail(replica_set, "a", times=1)
    (transition,) = log.transitions
    assert (transition.old, transition.new, transition.ejection_seconds) == ("healthy", "ejected", 30.0)
    assert transition.reason == "3 requests in a row failed, the limit is 3"
    log.drain()
    assert candidate_names(replica_set) == candidate_names(replica_set, 29.9) == "bc"
    assert pick(replica_set, 29.9).replica_id == url("b")
    trial = pick(replica_set, 30.0)
    assert trial.replica_id == url("a") and trial.is_trial
    assert log.drain() == [("a", "probing", "recovery_timeout")]
    others = [pick(replica_set, 30.0 + number) for number in range(20)]
    assert {each.replica_id for each in others} == {url("b")} and not any(each.is_trial for each in others)
    trial.record(HealthOutcome.SUCCESS, 50.0)
    trial.release()
    assert log.drain() == [("a", "healthy", "trial")]
    assert candidate_names(replica_set, 50.0) == "abc"
    assert replica_set.candidates("m", [], 50.0)[0].weight == 0.1, "slow start"
    assert replica_set.candidates("m", [], 65.0)[0].weight == 0.5
    assert replica_set.candidates("m", [], 80.0)[0].weight == 1.0


def test_a_trial_that_fails_ejects_for_longer() -> None:
    replica_set, log = new_set("abc")
    fail(replica_set, "a")
    trial = pick(replica_set, 30.0)
    trial.record(HealthOutcome.FAULT, 31.0)
    trial.release()
    assert log.transitions[-1].ejection_seconds == 60.0 and log.transitions[-1].cause == "trial"
    assert not pick(replica_set, 90.9).is_trial and pick(replica_set, 91.0).is_trial


def test_a_trial_without_outcome_goes_to_a_later_request() -> None:
    replica_set, _ = new_set("abc")
    fail(replica_set, "a")
    pick(replica_set, 30.0).release()
    assert not pick(replica_set, 30.5).is_trial
    with pick(replica_set, 31.0) as trial:
        trial.record(HealthOutcome.NEUTRAL, 31.0)
    assert states(replica_set)["a"] is HealthState.PROBING
    assert pick(replica_set, 32.0).is_trial


def test_a_second_attempt_is_a_trial_only_where_no_other_replica_is_left() -> None:
    replica_set, _ = new_set("abc")
    fail(replica_set, "a")
    policy = FirstPolicy()
    second = replica_set.pick(REQUEST, "m", policy, [url("b")], 30.0)
    assert second is not None and second.replica_id == url("c")
    third = replica_set.pick(REQUEST, "m", policy, [url("b"), url("c")], 30.0)
    assert third is not None and third.is_trial
    assert replica_set.pick(REQUEST, "m", policy, [*map(url, "abc")], 30.0) is None


def test_at_most_half_is_ejected_and_the_rest_goes_on() -> None:
    replica_set, log = new_set("abc")
    fail(replica_set, "a")
    fail(replica_set, "b", times=10)
    assert states(replica_set) == {"a": "ejected", "b": "healthy", "c": "healthy"}
    assert replica_set.num_suppressed_ejections == 8
    assert log.drain() == [("a", "ejected", "consecutive_faults")]
    replica_set.update(endpoints("abcd"), 1.0)
    fail(replica_set, "b", 1.0, times=1)
    assert states(replica_set)["b"] == "ejected", "the wish is granted when the pool is large enough"


def test_a_single_replica_is_never_ejected() -> None:
    replica_set, _ = new_set("a")
    fail(replica_set, "a", times=100)
    assert candidate_names(replica_set) == "a"


def test_a_pool_that_becomes_smaller_ends_its_oldest_ejection() -> None:
    replica_set, log = new_set("abcd")
    fail(replica_set, "b", 0.0)
    fail(replica_set, "a", 1.0)
    log.drain()
    replica_set.update(endpoints("abc"), 2.0)
    assert states(replica_set, 2.0) == {"a": "ejected", "b": "healthy", "c": "healthy"}
    assert ("b", "healthy", "ejection_limit") in log.drain()


def test_a_model_that_is_named_twice_is_one() -> None:
    replica_set, _ = new_set("ab", models=("m", "m"))
    assert candidate_names(replica_set) == "ab"
    fail(replica_set, "a")
    fail(replica_set, "b")
    assert states(replica_set) == {"a": "ejected", "b": "healthy"}


def test_the_limit_holds_for_each_model() -> None:
    replica_set = ReplicaSet(HealthConfig(has_active_probes=False))
    replica_set.update([*endpoints("ab", models=("m",)), *endpoints("cd", models=("n",))], 0.0)
    fail(replica_set, "a")
    fail(replica_set, "b")
    for _ in range(3):
        with pick(replica_set, only="c", model="n") as reservation:
            reservation.record(HealthOutcome.FAULT, 0.0)
    assert states(replica_set) == {"a": "ejected", "b": "healthy", "c": "ejected", "d": "healthy"}


def test_64_streams_that_are_cut_at_once_are_one_ejection() -> None:
    replica_set, _ = new_set("abc")
    cut = [pick(replica_set, only="a") for _ in range(64)]
    for reservation in cut:
        reservation.record(HealthOutcome.FAULT, 0.0)
        reservation.release()
    (status, *_) = replica_set.statuses(0.0)
    assert (status.num_ejections, status.open_requests, status.num_attempts) == (1, 0, 64)
    assert pick(replica_set, 30.0).is_trial, "not later than after one ejection"


def test_another_routers_ejection_keeps_to_the_limit() -> None:
    replica_set, log = new_set("abc")
    assert replica_set.eject_by_other_router(url("a"), 12.0, "router 2 ejected it", 0.0)
    assert log.transitions[0].ejection_seconds == 12.0 and log.drain() == [("a", "ejected", "other_router")]
    assert not replica_set.eject_by_other_router(url("a"), 12.0, "again", 0.0)
    assert not replica_set.eject_by_other_router(url("b"), 12.0, "half is ejected", 0.0)
    assert not replica_set.eject_by_other_router("http://z", 12.0, "unknown", 0.0)
    assert pick(replica_set, 12.0).is_trial


def test_a_slow_replica_is_ejected_by_the_tick() -> None:
    replica_set, log = new_set("abc")
    for name, seconds in (("a", 0.1), ("b", 0.1), ("c", 0.5)):
        for _ in range(20):
            with pick(replica_set, only=name) as reservation:
                reservation.record_first_token(seconds, 1.0)
                reservation.record(HealthOutcome.SUCCESS, 1.0)
    replica_set.tick(1.0)
    (transition,) = log.transitions
    assert (transition.replica_id, transition.cause) == (url("c"), "time_to_first_token")
    assert (
        transition.reason
        == "the time to first token for m is 500.0 ms, more than 3 times the pool's median of 100.0 ms"
    )
    assert candidate_names(replica_set, 1.0) == "ab"
    replica_set.tick(31.0)
    assert states(replica_set, 31.0)["c"] == "probing", "a tick ends ejections, too"


# -- panic mode, weights, drains ---------------------------------------------------------------------------------------


def test_all_are_used_when_none_is_healthy(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    replica_set, _ = new_set("abc", config=HealthConfig())
    assert candidate_names(replica_set) == "abc", "before the first probe"
    for name in "abc":
        replica_set.apply_probe(url(name), probed(is_success=False), 1.0)
    assert candidate_names(replica_set, 1.0) == "abc"
    assert pick(replica_set, 1.0).replica_id == url("a") and replica_set.num_panic_picks == 1
    assert caplog.text.count("no replica for m is healthy") == 1
    replica_set.apply_probe(url("b"), probed(), 2.0)
    assert candidate_names(replica_set, 2.0) == "b" and "a replica for m is healthy again" in caplog.text
    assert replica_set.pick(REQUEST, "m", FirstPolicy(), [url("b")], 2.0) is None, "one is healthy, though tried"


def test_drained_replicas_get_nothing_even_in_panic_mode() -> None:
    replica_set, log = new_set("abc")
    replica_set.drain(url("a"), 1.0)
    replica_set.drain(url("a"), 1.0)
    assert candidate_names(replica_set) == "bc" and log.drain() == [("a", "drained", "admin")]
    replica_set.drain(url("b"), 1.0)
    replica_set.drain(url("c"), 1.0)
    assert candidate_names(replica_set) == ""
    replica_set.undrain(url("b"), 2.0)
    assert candidate_names(replica_set, 2.0) == "b"
    assert log.drain()[-1] == ("b", "healthy", "admin")
    assert replica_set.candidates("m", [], 2.0)[0].weight == 0.1, "slow start"


def test_replicas_that_are_not_ready_are_the_last_resort() -> None:
    replica_set, log = new_set("abc")
    load = ReplicaLoad(at_seconds=0.0, state=ReplicaState.DRAINING)
    replica_set.apply_probe(url("a"), probed(load=load, reported_state=ReplicaState.DRAINING, is_success=False), 0.0)
    assert log.drain() == [("a", "not_ready", "report")], "at once, without three failures"
    assert candidate_names(replica_set) == "bc"
    fail(replica_set, "b")
    replica_set.drain(url("c"), 0.0)
    assert candidate_names(replica_set) == "b"
    replica_set.drain(url("b"), 0.0)
    assert candidate_names(replica_set) == "a", "its 503 has a Retry-After"
    replica_set.apply_probe(url("a"), probed(reported_state=ReplicaState.READY), 1.0)
    assert states(replica_set)["a"] == "healthy"


def test_weights_come_from_the_source_or_an_administrator() -> None:
    replica_set, _ = new_set("ab")
    replica_set.set_weight(url("a"), 0.25)
    assert [each.weight for each in replica_set.candidates("m", [], 0.0)] == [0.25, 1.0]
    replica_set.set_weight(url("a"), 0.0)
    assert candidate_names(replica_set) == "b"
    replica_set.set_weight(url("a"), None)
    assert [each.weight for each in replica_set.candidates("m", [], 0.0)] == [1.0, 1.0]
    for weight in (-1.0, 1001.0, float("nan")):
        with pytest.raises(ConfigError, match=r"weight of http://a:8000 must be between 0 and 1000, got"):
            replica_set.set_weight(url("a"), weight)


def test_an_unknown_replica_is_named_with_the_known_ones() -> None:
    replica_set, _ = new_set("ab")
    for change in (replica_set.drain, replica_set.undrain):
        with pytest.raises(NotFound, match=r"no replica 'http://z'; the replicas are http://a:8000, http://b:8000"):
            change("http://z", 0.0)
    with pytest.raises(NotFound, match="the replicas are none"):
        ReplicaSet(HealthConfig()).set_weight("http://z", 1.0)


# -- probes and models -------------------------------------------------------------------------------------------------


def test_an_added_replica_is_probed_before_it_gets_requests() -> None:
    replica_set, log = new_set("a", config=HealthConfig())
    replica_set.apply_probe(url("a"), probed(), 0.0)
    assert replica_set.candidates("m", [], 0.0)[0].weight == 1.0, "the first replicas have no slow start"
    replica_set.update(endpoints("ab"), 10.0)
    assert candidate_names(replica_set, 10.0) == "a"
    replica_set.apply_probe(url("b"), probed(), 10.0)
    assert [each.weight for each in replica_set.candidates("m", [], 10.0)] == [1.0, 0.1]
    assert log.drain()[-1] == ("b", "healthy", "probes")
    replica_set.apply_probe("http://gone", probed(), 10.0)


def test_a_replica_that_has_started_is_not_called_unhealthy_in_between() -> None:
    replica_set, log = new_set("a", config=HealthConfig())
    log.drain()
    starting = probed(is_success=False, reported_state=ReplicaState.STARTING)
    load = ReplicaLoad(at_seconds=2.0, state=ReplicaState.READY)
    for result in (probed(is_success=False), starting, probed(load=load, reported_state=ReplicaState.READY)):
        replica_set.apply_probe(url("a"), result, 2.0)
    assert log.drain() == [("a", "unhealthy", "probes"), ("a", "not_ready", "report"), ("a", "healthy", "report")]


def test_probes_overrule_an_ejection() -> None:
    replica_set, log = new_set("abc", config=HealthConfig())
    for name in "abc":
        replica_set.apply_probe(url(name), probed(), 0.0)
    fail(replica_set, "a")
    for _ in range(3):
        replica_set.apply_probe(url("a"), probed(is_success=False), 1.0)
    assert states(replica_set)["a"] == "unhealthy"
    fail(replica_set, "b", 1.0)
    assert states(replica_set)["b"] == "ejected", "a replica that probes call unhealthy is not one of the half"
    log.drain()
    for _ in range(2):
        replica_set.apply_probe(url("a"), probed(), 2.0)
    assert log.drain() == [("a", "healthy", "probes")]


def test_models_are_learnt_and_make_pools() -> None:
    replica_set, _ = new_set("abc", models=())
    assert candidate_names(replica_set, model="x") == "abc", "none is known yet"
    for name, names in (("a", ("m", "n")), ("b", ("m",))):
        served = ServedModels(names=names, adapters=frozenset(), fingerprints={"m": f"f{name}"})
        replica_set.apply_probe(url(name), probed(models=served, kind=ReplicaKind.CHAIRLIFT), 0.0)
    assert (candidate_names(replica_set, model="m"), candidate_names(replica_set, model="n")) == ("ab", "a")
    assert candidate_names(replica_set, model="x") == "c", "its models are still unknown"
    assert candidate_names(replica_set, model="") == "abc" and replica_set.models == ("m", "n")
    assert [each.replica_id for each in replica_set.candidates("m", [], 0.0, fingerprint="fb")] == [url("b")]
    replica_set.update(endpoints("ab", models=()), 1.0)
    assert candidate_names(replica_set, model="x") == ""


def test_the_listing_has_every_replica() -> None:
    replica_set, _ = new_set("ab")
    reservation = pick(replica_set)
    replica_set.drain(url("b"), 3.0)
    first, second = replica_set.statuses(5.0)
    assert (first.replica_id, first.state, first.open_requests, first.seconds_in_state) == (url("a"), "healthy", 1, 5.0)
    assert (second.state, second.cause, second.seconds_in_state) == ("drained", "admin", 2.0)
    assert second.reason == "drained by an administrator" and not second.resumable
    assert replica_set.num_by_state() == {
        state: {HealthState.HEALTHY: 1, HealthState.DRAINED: 1}.get(state, 0) for state in HealthState
    }
    reservation.release()


def test_every_transition_is_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    replica_set, log = new_set("abc")
    caplog.clear()
    fail(replica_set, "a")
    pick(replica_set, 30.0).record(HealthOutcome.SUCCESS, 30.0)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "replica http://a:8000 is ejected, was healthy: 3 requests in a row failed, the limit is 3"),
        ("INFO", "replica http://a:8000 is probing, was ejected: the ejection is over, the next request is a trial"),
        ("WARNING", "replica http://a:8000 is healthy, was probing: the trial request succeeded"),
    ]
    assert len(log.transitions) == 3 and isinstance(log, TransitionLog)
