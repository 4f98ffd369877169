"""ColdStarts: the median of recent first starts, without replicas that served before they were first seen."""

from chairlift.autoscaler.cold_starts import ColdStarts
from support_autoscaler import READY, STARTING, pool, silent


def test_the_median_of_observed_starts() -> None:
    starts = ColdStarts()
    assert starts.median_seconds() is None
    starts.add(pool(0, silent("old", READY, age_seconds=900.0), silent("a", STARTING), silent("b", STARTING)))
    starts.add(pool(2, silent("a", READY, age_seconds=30.0), silent("b", STARTING)))
    starts.add(pool(4, silent("a", READY, age_seconds=32.0), silent("b", READY, age_seconds=50.0)))
    starts.add(pool(6, silent("a", READY, age_seconds=34.0), silent("b", READY, age_seconds=52.0)))
    assert starts.median_seconds() == 40.0


def test_old_starts_are_forgotten() -> None:
    starts = ColdStarts()
    for number in range(60):
        starts.add(pool(0, silent(str(number), STARTING)))
        starts.add(pool(0, silent(str(number), READY, age_seconds=10.0 if number < 30 else 20.0)))
    assert starts.median_seconds() == 20.0


def test_only_the_first_start_of_a_replica_counts() -> None:
    starts = ColdStarts()
    starts.add(pool(0, silent("a", STARTING, age_seconds=1.0)))
    starts.add(pool(2, silent("a", READY, age_seconds=20.0)))
    for age in (9000.0, 9001.0):
        starts.add(pool(age, silent("a", STARTING, age_seconds=age)))
    starts.add(pool(9002, silent("a", READY, age_seconds=9002.0)))
    assert starts.median_seconds() == 20.0


def test_a_replica_that_served_before_it_was_first_seen_has_no_start() -> None:
    starts = ColdStarts()
    starts.add(pool(0, silent("a", STARTING, age_seconds=40_000.0)))  # its first load report could not be read
    starts.add(pool(2, silent("a", READY, age_seconds=40_002.0)))
    assert starts.median_seconds() is None
