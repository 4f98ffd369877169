"""ColdStarts: the median age at the change from STARTING to READY."""

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
