"""CalmPeriod: a trial needs a calm period, which doubles with each trial that fails."""

from chairlift.core.host.calm_period import CalmPeriod


def calm_seconds(period: CalmPeriod, now: float) -> float:
    """Return after how many seconds without delay there may be a trial; it begins."""
    period.observe(now, is_calm=False)
    assert not period.has_passed(now + 1000), "there was no calm moment"
    period.observe(now, is_calm=True)
    seconds = next(each for each in range(1000) if period.has_passed(now + each))
    period.observe(now + seconds, is_calm=True)
    period.begin_trial(now + seconds)
    assert not period.has_passed(now + 1000), "a trial has begun"
    return seconds


def test_trials_that_fail_double_the_period_and_one_that_lasts_shortens_it_again() -> None:
    period, now, periods = CalmPeriod(2.0, 16.0), 0.0, []
    period.end_trial(now)
    for _ in range(5):
        periods.append(calm_seconds(period, now))
        now += periods[-1]
        now += 1.0
        period.end_trial(now)
    assert periods == [2, 4, 8, 16, 16]
    now += calm_seconds(period, now)
    now += 16.0
    period.end_trial(now)
    assert calm_seconds(period, now) == 2


def test_a_delay_ends_the_period() -> None:
    period = CalmPeriod(2.0, 16.0)
    period.observe(0.0, is_calm=True)
    period.observe(1.0, is_calm=True)
    period.observe(1.9, is_calm=False)
    period.observe(2.0, is_calm=True)
    assert not period.has_passed(3.9) and period.has_passed(4.0)


def test_several_delays_after_a_trial_are_one_failure() -> None:
    period = CalmPeriod(2.0, 16.0)
    period.begin_trial(10.0)
    for now in (11.0, 11.5, 12.0):
        period.end_trial(now)
    assert calm_seconds(period, 12.0) == 4
