"""LatencyOutliers: a replica far above its pool's median is found, given enough recent samples of one kind."""

import pytest

from chairlift.core.errors import ConfigError
from chairlift.router.health.health_state import TransitionCause
from chairlift.router.health.outliers import MAX_SAMPLES, LatencyOutliers, OutlierConfig
from support_shares import for_each

TTFT, ITL = TransitionCause.TIME_TO_FIRST_TOKEN, TransitionCause.INTER_TOKEN_LATENCY


def found(
    medians: dict[str, float], *, samples: int = 20, config: OutlierConfig | None = None, now: float = 100.0
) -> list[str]:
    outliers = LatencyOutliers(config or OutlierConfig())
    for replica_id, seconds in medians.items():
        for _ in range(samples):
            outliers.record(replica_id, "m", TTFT, seconds, now)
    return [outlier.replica_id for outlier in outliers.find(now)]


@for_each(
    ("medians", "expected"),
    [
        ({"a": 0.1, "b": 0.1, "c": 0.31}, ["c"]),
        ({"a": 0.1, "b": 0.1, "c": 0.3}, []),  # not more than 3 times
        ({"a": 0.1, "b": 9.0}, []),  # two replicas have no majority
        ({"a": 0.1, "b": 0.1, "c": 0.4, "d": 0.9, "e": 0.1}, ["d", "c"]),  # the slowest first
        ({"a": 0.001, "b": 0.001, "c": 0.02}, []),  # a difference below 20 ms is noise
        ({"a": 0.001, "b": 0.001, "c": 0.022}, ["c"]),
        ({"a": 0.0, "b": 0.0, "c": 0.1}, ["c"]),
        ({"a": 0.1, "b": 0.9, "c": 0.9, "d": 0.9}, []),  # the median is that of most
    ],
)
def test_a_replica_above_three_times_the_median_is_found(medians: dict[str, float], expected: list[str]) -> None:
    assert found(medians) == expected


def test_too_few_samples_and_replicas_give_no_verdict() -> None:
    assert found({"a": 0.1, "b": 0.1, "c": 1.0}, samples=19) == []
    assert found({"a": 0.1, "b": 0.1, "c": 1.0}, config=OutlierConfig(min_replicas=4)) == []
    assert found({"a": 0.1, "b": 0.1, "c": 1.0}, config=OutlierConfig(factor=float("inf"))) == []


def test_a_few_slow_requests_are_no_outlier() -> None:
    outliers = LatencyOutliers(OutlierConfig())
    for replica_id in "abc":
        for number in range(20):
            outliers.record(replica_id, "m", TTFT, 5.0 if replica_id == "c" and number < 9 else 0.1, 0.0)
    assert outliers.find(0.0) == []


def test_models_and_latencies_are_compared_with_their_own_kind() -> None:
    outliers = LatencyOutliers(OutlierConfig())
    for replica_id, model, cause, seconds in [
        ("a", "small", TTFT, 0.1), ("b", "small", TTFT, 0.1), ("c", "large", TTFT, 2.0), ("a", "small", ITL, 0.01),
        ("b", "small", ITL, 0.01), ("c", "small", ITL, 0.2),
    ]:  # fmt: skip
        for _ in range(20):
            outliers.record(replica_id, model, cause, seconds, 0.0)
    (outlier,) = outliers.find(0.0)
    assert (outlier.replica_id, outlier.model, outlier.cause) == ("c", "small", ITL)
    assert outlier.reason == (
        "the inter-token latency for small is 200.0 ms, more than 3 times the pool's median of 10.0 ms"
    )


def test_old_samples_and_forgotten_replicas_do_not_count() -> None:
    outliers = LatencyOutliers(OutlierConfig())
    for replica_id in "abc":
        for _ in range(20):
            outliers.record(replica_id, "m", TTFT, 0.1 if replica_id < "c" else 1.0, 0.0)
    assert [each.replica_id for each in outliers.find(60.0)] == ["c"]
    assert outliers.find(70.5) == [], "the window is 60 s"
    assert not outliers._pools, "nothing is kept"
    for replica_id in "abcd":
        for _ in range(20):
            outliers.record(replica_id, "m", TTFT, 0.1 if replica_id < "c" else 1.0, 100.0)
    outliers.forget("c")
    outliers.forget("nowhere")
    assert outliers.find(100.0)[0].replica_id == "d"


def test_checks_keep_their_interval_and_memory_its_bound() -> None:
    outliers = LatencyOutliers(OutlierConfig())
    outliers.find(0.0)
    for replica_id in "abc":
        for _ in range(1000):
            outliers.record(replica_id, "m", TTFT, 0.1 if replica_id < "c" else 1.0, 1.0)
    assert outliers.find(9.9) == []
    assert len(outliers.find(10.0)) == 1
    assert {len(samples) for pool in outliers._pools.values() for samples in pool.values()} == {MAX_SAMPLES}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"factor": 1.0}, "factor of latency outliers must be above 1, got 1"),
        ({"min_samples": 0}, "between 1 and 128, got 0"),
        ({"min_samples": 129}, "between 1 and 128, got 129"),
        ({"min_replicas": 2}, "must be at least 3, got 2"),
    ],
)
def test_settings_without_sense_are_refused(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OutlierConfig(**fields)  # type: ignore[arg-type]
