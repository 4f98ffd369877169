"""Reservation: one release, one outcome, trials, and reports of answers, also of a new or removed replica."""

import pytest

from chairlift.router.endpoint import ReplicaKind
from chairlift.router.health.breaker import HealthOutcome
from chairlift.router.health.replica_load import parse_load
from chairlift.router.health.served_models import ServedModels
from chairlift.router.replica_set import ReplicaSet
from support_replica_set import endpoints, new_set, pick, probed, states, url

FAULT, SUCCESS, NEUTRAL = HealthOutcome.FAULT, HealthOutcome.SUCCESS, HealthOutcome.NEUTRAL


def eject(replica_set: ReplicaSet, name: str, now: float = 0.0) -> None:
    for _ in range(3):
        with pick(replica_set, now, only=name) as reservation:
            reservation.record(FAULT, now)


def test_a_release_counts_once() -> None:
    replica_set, _ = new_set("a")
    first, second = pick(replica_set), pick(replica_set)
    (candidate,) = replica_set.candidates("m", [], 0.0)
    assert (candidate.open_requests, candidate.pending_prefill_tokens) == (2, 20)
    for _ in range(3):
        first.release()
    assert first.is_released and not second.is_released
    (candidate,) = replica_set.candidates("m", [], 0.0)
    assert (candidate.open_requests, candidate.pending_prefill_tokens) == (1, 10)


def test_an_error_inside_releases() -> None:
    replica_set, _ = new_set("a")
    with pytest.raises(ZeroDivisionError), pick(replica_set) as reservation:
        raise ZeroDivisionError
    assert reservation.is_released and replica_set.candidates("m", [], 0.0)[0].open_requests == 0


def test_the_first_token_ends_the_wait_of_the_prompt() -> None:
    replica_set, _ = new_set("a")
    with pick(replica_set) as reservation:
        reservation.record_first_token(0.1, 0.0)
        reservation.record_first_token(0.1, 0.0)
        (candidate,) = replica_set.candidates("m", [], 0.0)
        assert (candidate.open_requests, candidate.pending_prefill_tokens) == (1, 0)
    assert replica_set.candidates("m", [], 0.0)[0].pending_prefill_tokens == 0


def test_only_the_first_outcome_counts() -> None:
    replica_set, _ = new_set("ab")
    for _ in range(3):
        with pick(replica_set, only="a") as reservation:
            reservation.record(NEUTRAL, 0.0)
            reservation.record(FAULT, 0.0)
    assert states(replica_set)["a"] == "healthy"


def test_the_first_token_ends_a_trial_and_a_later_cut_is_a_fault_of_its_own() -> None:
    replica_set, log = new_set("ab")
    eject(replica_set, "a")
    trial = pick(replica_set, 30.0)
    trial.record_first_token(0.1, 31.0)
    assert states(replica_set, 31.0)["a"] == "healthy" and log.drain()[-1] == ("a", "healthy", "trial")
    trial.record(FAULT, 32.0)
    trial.release()
    assert states(replica_set, 32.0)["a"] == "healthy", "one fault does not eject"
    for _ in range(2):
        with pick(replica_set, 33.0, only="a") as reservation:
            reservation.record(FAULT, 33.0)
    assert states(replica_set, 33.0)["a"] == "ejected", "but it is the first of three"


def test_a_trial_of_the_process_before_says_nothing_about_the_new_one() -> None:
    replica_set, _ = new_set("ab")
    eject(replica_set, "a")
    old = pick(replica_set, 30.0)
    assert old.is_trial
    for instance in ("p1", "p2"):
        replica_set.apply_probe(url("a"), probed(load=parse_load({"instance_id": instance}, 31.0)), 31.0)
    old.record(FAULT, 31.0)
    old.release()
    assert states(replica_set, 31.0)["a"] == "probing"
    new = pick(replica_set, 31.0)
    assert new.is_trial and new.incarnation == "p2"
    new.record(SUCCESS, 31.0)
    assert states(replica_set, 31.0)["a"] == "healthy"


def test_a_new_process_is_reported_once_and_voids_the_counts() -> None:
    replica_set, log = new_set("ab")
    restarts: list[tuple[str, str]] = []
    replica_set.restart_listeners.append(lambda replica_id, incarnation: restarts.append((replica_id, incarnation)))
    reservation = pick(replica_set, only="a")
    reservation.record_load_header("instance=p1;running=4", 0.0)
    assert restarts == [] and replica_set.candidates("m", [], 0.0)[0].running_requests == 4
    for _ in range(2):
        with pick(replica_set, only="a") as failed:
            failed.record(FAULT, 0.0)
    later = pick(replica_set, only="a")
    assert later.incarnation == "p1"
    with pick(replica_set, only="a") as other:
        other.record_load_header("instance=p2;running=1", 1.0)
        other.record_load_header("instance=p2;running=2", 1.0)
    assert restarts == [(url("a"), "p2")]
    replica_set.drain(url("b"), 1.0)
    replica_set.drain(url("a"), 1.0)
    assert [each.incarnation for each in log.transitions] == ["", "p2"]
    replica_set.undrain(url("a"), 1.0)
    later.record_load_header("instance=p1;running=9", 1.0)
    later.record(FAULT, 1.0)
    later.release()
    (candidate,) = replica_set.candidates("m", [], 1.0)
    assert restarts == [(url("a"), "p2")], "late words of the old process do not count"
    assert (candidate.incarnation, candidate.running_requests, candidate.open_requests) == ("p2", 2, 1)
    assert states(replica_set)["a"] == "healthy", "two faults were of the old process"


def test_a_foreign_server_that_returns_from_the_dead_has_an_empty_cache() -> None:
    replica_set, _ = new_set("ab")
    restarts: list[tuple[str, str]] = []
    replica_set.restart_listeners.append(lambda *each: restarts.append(each))
    for is_success in (True, False, False, True, False, False, False, True, True, True):
        replica_set.apply_probe(url("a"), probed(is_success=is_success), 0.0)
    assert restarts == [(url("a"), "")]


def test_a_header_takes_a_draining_replica_out_and_nonsense_does_nothing() -> None:
    replica_set, log = new_set("ab")
    with pick(replica_set, only="a") as reservation:
        reservation.record_load_header("{{{", 0.0)
        reservation.record_load_header("x" * 9999, 0.0)
        assert log.drain() == []
        reservation.record_load_header("state=draining;running=1", 0.0)
    assert log.drain() == [("a", "not_ready", "report")]


def test_a_removed_replica_reports_to_no_one() -> None:
    replica_set, log = new_set("ab")
    restarts: list[tuple[str, str]] = []
    replica_set.restart_listeners.append(lambda *each: restarts.append(each))
    with pick(replica_set, only="a") as reservation:
        reservation.record_load_header("instance=p1;running=1", 0.0)
        replica_set.update(endpoints("b"), 1.0)
        log.drain()
        reservation.record_load_header("instance=p2;state=draining;running=1", 1.0)
    assert restarts == [] and log.drain() == []


def test_a_reservation_knows_what_a_resume_needs() -> None:
    replica_set, _ = new_set("ab")
    served = ServedModels(names=("m",), adapters=frozenset(), fingerprints={"m": "f1"})
    replica_set.apply_probe(url("a"), probed(kind=ReplicaKind.CHAIRLIFT, models=served), 0.0)
    first, second = pick(replica_set, only="a"), pick(replica_set, only="b")
    assert (first.model, first.fingerprint, first.is_resumable) == ("m", "f1", True)
    assert (second.fingerprint, second.is_resumable, second.endpoint.url) == ("", False, url("b"))
    assert pick(replica_set, fingerprint="f1").replica_id == url("a")


def test_latencies_without_sense_are_dropped() -> None:
    replica_set, _ = new_set("abc")
    for name in "abc":
        for _ in range(30):
            with pick(replica_set, only=name) as reservation:
                reservation.record_first_token(float("nan") if name == "a" else -1.0, 0.0)
                reservation.record_inter_token_latency(float("inf"), 0.0)
    replica_set.tick(0.0)
    assert set(states(replica_set).values()) == {"healthy"}


def test_inter_token_latency_ejects_too() -> None:
    replica_set, log = new_set("abc")
    for name, seconds in (("a", 0.01), ("b", 0.01), ("c", 0.2)):
        for _ in range(20):
            with pick(replica_set, only=name) as reservation:
                reservation.record_inter_token_latency(seconds, 0.0)
    replica_set.tick(0.0)
    assert log.drain() == [("c", "ejected", "inter_token_latency")]


def test_a_reservation_knows_whether_its_replica_fails_health_checks() -> None:
    replica_set, _ = new_set("ab")
    with pick(replica_set, only="a") as reservation:
        assert not reservation.is_replica_unhealthy
        eject(replica_set, "a")
        assert not reservation.is_replica_unhealthy, "requests may fail because the replica has too many of them"
        for _ in range(3):
            replica_set.apply_probe(url("a"), probed(is_success=False), 0.0)
        assert reservation.is_replica_unhealthy
