"""ExternalRule: totals and averages against their targets."""

from chairlift.autoscaler.rules.external_metric import ExternalRule
from support_autoscaler import pool, replicas_of, window_of

TOTAL = ExternalRule("lag", 50.0, is_ratio=False)
AVERAGE = ExternalRule("lag", 50.0, is_ratio=True)


def test_a_total_is_divided_among_replicas_and_an_average_is_not() -> None:
    window = window_of(pool(0, *replicas_of(4), external={"lag": 100.0}))
    assert TOTAL.evaluate(window).desired == 2.0
    assert AVERAGE.evaluate(window).desired == 8.0


def test_missing_and_zero() -> None:
    for values in ({"lag": None}, {}):
        assert TOTAL.evaluate(window_of(pool(0, *replicas_of(4), external=values))).desired is None
    assert TOTAL.evaluate(window_of(pool(0, *replicas_of(4), external={"lag": 0.0}))).desired == 0.0
    assert TOTAL.evaluate(window_of(pool(0, external={"lag": 75.0}))).desired == 1.5, "it needs no replica to be known"
    assert AVERAGE.evaluate(window_of(pool(0, external={"lag": 75.0}))).desired is None
