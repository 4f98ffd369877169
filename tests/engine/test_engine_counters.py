"""Tests of Counters."""

from chairlift.engine.engine_counters import Counters


def test_every_reason_has_a_count_from_the_start() -> None:
    assert Counters().finished_by_reason == {"stop": 0, "length": 0, "abort": 0, "error": 0}
