"""Breaker: which faults eject a replica, for how long, and how one trial decides whether it returns."""

from random import Random

import pytest

from chairlift.core.errors import ConfigError
from chairlift.router.health.breaker import Breaker, BreakerConfig, BreakerState, HealthOutcome
from chairlift.router.health.health_state import TransitionCause
from support_shares import for_each

CONFIG = BreakerConfig()
OUTCOMES = {"F": HealthOutcome.FAULT, "S": HealthOutcome.SUCCESS, "N": HealthOutcome.NEUTRAL}


def record(breaker: Breaker, symbols: str, now: float = 0.0) -> list[TransitionCause | None]:
    """Record outcomes as symbols and return the cause of each wish."""
    wishes = [breaker.record(OUTCOMES[symbol], now, epoch=breaker.epoch) for symbol in symbols]
    return [None if wish is None else wish.cause for wish in wishes]


def ejected(times: int = 1, now: float = 0.0) -> Breaker:
    breaker = Breaker(CONFIG)
    for _ in range(times):
        breaker.eject(now)
    return breaker


@for_each(
    ("symbols", "ejects"),
    [
        ("FF", False),
        ("FFF", True),
        ("FFSF", False),
        ("FFSFF", False),
        ("FFSFFF", True),
        ("FNFNNF", True),  # what says nothing neither counts nor resets
        ("FFN", False),
        ("N" * 1000, False),
        ("S" * 50, False),
    ],
)
def test_faults_in_a_row_eject(symbols: str, ejects: bool) -> None:
    wishes = record(Breaker(CONFIG), symbols)
    assert wishes[-1] == (TransitionCause.CONSECUTIVE_FAULTS if ejects else None)
    assert not any(wishes[:-1])


@pytest.mark.parametrize(
    ("symbols", "ejects"),
    [
        ("SF" * 9 + "S", False),  # 19 requests
        ("SF" * 10, True),
        ("SSF" * 10, False),
        ("S" * 11 + "FFS" * 6, False),
        ("SNF" * 10, True),
    ],
)
def test_a_share_of_faults_ejects_once_there_are_enough_requests(symbols: str, ejects: bool) -> None:
    wishes = record(Breaker(CONFIG), symbols)
    assert (TransitionCause.ERROR_SHARE in wishes) == ejects
    assert not any(wishes[:19])


def test_the_share_is_that_of_the_window() -> None:
    breaker = Breaker(CONFIG)
    assert not any(record(breaker, "SF" * 9, now=0.0))
    assert not any(record(breaker, "SF" * 9, now=40.0)), "the first ones are older than 30 s"
    assert record(breaker, "SF", now=60.0) == [None, TransitionCause.ERROR_SHARE], "they are not older than 30 s"


@pytest.mark.parametrize("is_new_process", [False, True])
def test_the_share_forgets_what_was_before_an_ejection_or_a_new_process(is_new_process: bool) -> None:
    breaker = Breaker(CONFIG)
    record(breaker, "SF" * 9)
    if is_new_process:
        breaker.skip_ejection()
    else:
        breaker.eject(1.0, seconds=1.0)
        assert breaker.advance(2.0)
    breaker.close(2.0)
    assert not any(record(breaker, "SF", now=3.0)), "18 of the 20 requests of these 30 s were before"
    assert TransitionCause.ERROR_SHARE in record(breaker, "SF" * 9, now=4.0)


def test_a_share_above_one_never_ejects() -> None:
    breaker = Breaker(BreakerConfig(error_share=1.01, max_failures=1000))
    assert not any(record(breaker, "F" * 999))


def test_a_reason_has_both_numbers() -> None:
    breaker = Breaker(CONFIG)
    record(breaker, "FF")
    wish = breaker.record(HealthOutcome.FAULT, 0.0, epoch=0)
    assert wish is not None and wish.reason == "3 requests in a row failed, the limit is 3"
    breaker = Breaker(CONFIG)
    record(breaker, "SF" * 9 + "S")
    wish = breaker.record(HealthOutcome.FAULT, 0.0, epoch=0)
    assert wish is not None and wish.reason == "10 of 20 requests failed within 30 s, the limit is 50%"


def test_a_wish_that_is_not_granted_comes_again() -> None:
    breaker = Breaker(CONFIG)
    assert record(breaker, "FFFFNF")[2:] == [
        TransitionCause.CONSECUTIVE_FAULTS, TransitionCause.CONSECUTIVE_FAULTS, None,
        TransitionCause.CONSECUTIVE_FAULTS,
    ]  # fmt: skip
    assert breaker.state is BreakerState.HEALTHY


@for_each(("times", "seconds"), [(1, 30), (2, 60), (3, 90), (20, 600), (21, 600), (500, 600)])
def test_the_nth_ejection_takes_n_times_as_long_up_to_ten_minutes(times: int, seconds: float) -> None:
    breaker = Breaker(CONFIG)
    now = 0.0
    for _ in range(times):
        breaker.eject(now)
        end = breaker.ejected_until
        assert not breaker.advance(end - 0.001) and breaker.state is BreakerState.EJECTED
        assert breaker.advance(end) and breaker.state is BreakerState.PROBING
        breaker.begin_trial(end)
        duration, now = end - now, end
        assert breaker.end_trial(HealthOutcome.SUCCESS, now, epoch=breaker.epoch)
    assert duration == seconds
    assert breaker.num_ejections == times


def test_a_healthy_time_shortens_the_next_ejection() -> None:
    breaker = ejected(times=5)
    breaker.close(now=1000.0)
    breaker.eject(now=1000.0 + 599)
    assert breaker.ejected_until == 1599 + 6 * 30
    breaker.close(now=2000.0)
    breaker.eject(now=2000.0 + 1800)  # 6 - 3 + 1
    assert breaker.ejected_until == 3800 + 4 * 30
    breaker.close(now=4000.0)
    breaker.eject(now=1e6)
    assert breaker.ejected_until == 1e6 + 30, "n never falls below 1"


@pytest.mark.parametrize(
    ("outcome", "state", "changed"),
    [
        (HealthOutcome.SUCCESS, BreakerState.HEALTHY, True),
        (HealthOutcome.FAULT, BreakerState.EJECTED, True),
        (HealthOutcome.NEUTRAL, BreakerState.PROBING, False),
    ],
)
def test_one_trial_decides(outcome: HealthOutcome, state: BreakerState, changed: bool) -> None:
    breaker = ejected()
    breaker.advance(30.0)
    assert breaker.has_due_trial(30.0)
    breaker.begin_trial(30.0)
    assert not breaker.has_due_trial(30.0)
    assert breaker.end_trial(outcome, 31.0, epoch=breaker.epoch) is changed
    assert breaker.state is state
    if state is BreakerState.EJECTED:
        assert breaker.ejected_until == 31 + 60


def test_a_trial_without_an_outcome_leaves_it_to_a_request_a_second_later() -> None:
    breaker = ejected()
    breaker.advance(30.0)
    breaker.begin_trial(30.0)
    breaker.cancel_trial(epoch=breaker.epoch)
    assert not breaker.has_due_trial(30.9) and breaker.has_due_trial(31.0)


def test_outcomes_of_requests_from_before_the_ejection_do_not_count() -> None:
    breaker = Breaker(CONFIG)
    old = breaker.epoch
    record(breaker, "FFF")
    breaker.eject(0.0)
    for _ in range(100):
        assert breaker.record(HealthOutcome.FAULT, 1.0, epoch=old) is None
    assert breaker.ejected_until == 30.0 and breaker.num_ejections == 1
    breaker.advance(30.0)
    breaker.begin_trial(30.0)
    assert not breaker.end_trial(HealthOutcome.FAULT, 30.0, epoch=old), "not the trial"
    breaker.cancel_trial(epoch=old)
    assert not breaker.has_due_trial(99.0), "the trial is still open"
    breaker.end_trial(HealthOutcome.SUCCESS, 31.0, epoch=breaker.epoch)
    for _ in range(100):
        assert breaker.record(HealthOutcome.FAULT, 31.0, epoch=old) is None


def test_a_return_starts_with_counts_of_zero() -> None:
    breaker = Breaker(CONFIG)
    record(breaker, "FF")
    breaker.close(1.0)
    assert not any(record(breaker, "FF"))


def test_a_new_process_is_tried_before_the_ejection_is_over() -> None:
    breaker = ejected(times=3)
    breaker.skip_ejection()
    assert breaker.has_due_trial(0.0)
    breaker.begin_trial(0.0)
    breaker.end_trial(HealthOutcome.FAULT, 1.0, epoch=breaker.epoch)
    assert breaker.ejected_until == 1 + 4 * 30, "a crash loop is ejected for longer and longer"


@pytest.mark.parametrize(("seconds", "until"), [(5.0, 105.0), (-1.0, 100.0), (9999.0, 700.0)])
def test_another_router_chooses_the_time_within_limits(seconds: float, until: float) -> None:
    breaker = Breaker(CONFIG)
    breaker.eject(100.0, seconds=seconds)
    assert breaker.ejected_until == until


@pytest.mark.share(20)
@pytest.mark.parametrize("seed", range(50))
def test_no_mix_of_neutral_outcomes_and_two_faults_ejects(seed: int) -> None:
    random, breaker, now = Random(seed), Breaker(CONFIG), 0.0
    for _ in range(500):
        now += random.expovariate(1.0)
        symbols = random.choice(["N", "NN", "S", "NFN", "FNF"]) + "S" * 2
        assert not any(record(breaker, symbols, now))


@for_each(
    ("fields", "message"),
    [
        ({"max_failures": 0}, "max_failures must be at least 1, got 0"),
        ({"min_requests": 0}, "min_requests must be at least 1, got 0"),
        ({"error_share": 0.0}, "error_share must be above 0, got 0"),
        ({"error_share": float("nan")}, "error_share must be above 0, got nan"),
        ({"window_seconds": 0.0}, "window_seconds must be a number of seconds above 0, got 0"),
        ({"recovery_timeout_seconds": -1.0}, "recovery_timeout_seconds must be .* got -1"),
        ({"max_ejection_seconds": float("inf")}, "max_ejection_seconds must be .* got inf"),
    ],
)
def test_settings_without_sense_are_refused(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BreakerConfig(**fields)  # type: ignore[arg-type]
