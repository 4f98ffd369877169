"""Need: panic, tolerance, stabilisation, headroom, reversals, missing data, and thresholds."""

from dataclasses import replace

from chairlift.autoscaler.config import AutoscalerConfig, TargetConfig, ThresholdConfig, WindowConfig
from chairlift.autoscaler.decision import Decision
from chairlift.autoscaler.desired_replicas import is_reversal_held, need_of_rules, need_of_thresholds
from chairlift.autoscaler.history import Change, PoolHistory
from chairlift.autoscaler.pool_sample import PoolSample
from support_autoscaler import STARTING, history_of, pool, replicas_of, silent, steady
from support_shares import for_each

CONFIG = AutoscalerConfig(max_replicas=50, targets=TargetConfig(concurrency_ratio=0.5))


def decide_on(*samples: PoolSample, config: AutoscalerConfig = CONFIG) -> Decision:
    return history_of(config, samples)[1]


def test_a_need_within_the_tolerance_changes_nothing() -> None:
    assert decide_on(*steady(10, 60, running_requests=5.5)).target == 10
    grown = decide_on(*steady(10, 60, running_requests=5.6))
    assert (grown.target, grown.reason) == (12, "growth")


def test_both_windows_have_to_agree_before_the_pool_grows() -> None:
    calm, peak = steady(10, 60, running_requests=4.0), steady(10, 6, start=62, running_requests=7.0)
    assert decide_on(*calm, *peak).target == 10
    past = steady(10, 60, running_requests=9.0)
    assert decide_on(*past, *steady(10, 8, start=62, running_requests=4.0)).target == 10


def test_a_panic_follows_the_short_window_and_lasts_the_stable_one() -> None:
    calm = steady(2, 60, running_requests=4.0)
    burst = steady(2, 6, start=62, running_requests=10.0, waiting_requests=10.0)
    decision = decide_on(*calm, *burst)
    assert (decision.target, decision.reason, decision.is_panic, decision.panic_until) == (8, "panic", True, 128.0)
    after = steady(2, 58, start=70, running_requests=0.0)
    assert decide_on(*calm, *burst, *after[:-1]).is_panic
    assert not decide_on(*calm, *burst, *after, pool(134, *replicas_of(2))).is_panic


def test_a_panic_does_not_shrink_the_pool() -> None:
    history = PoolHistory(CONFIG)
    for sample in steady(20, 400, running_requests=0.0):
        history.add(sample)
        history.record(Decision(at_seconds=sample.at_seconds, target=20, current=20, recommended=0.0))
    assert need_of_rules(history, CONFIG, 20, 400.0).target == 0
    history.panic_until = 401.0
    assert need_of_rules(history, CONFIG, 20, 400.0).target == 20


def test_the_pool_shrinks_after_the_stabilisation_time_to_its_highest_need_with_headroom() -> None:
    calm = steady(10, 296, running_requests=1.0)
    assert decide_on(*calm).reason == "stabilisation"
    decision = decide_on(*steady(10, 304, running_requests=1.0))
    assert (decision.target, decision.reason) == (3, "shrink")  # 2 x 1.2 / 1.1
    peak = steady(10, 62, start=100, running_requests=3.0)
    with_peak = [*steady(10, 98, running_requests=1.0), *peak, *steady(10, 200, start=164, running_requests=1.0)]
    assert decide_on(*with_peak).target == 7  # 6 x 1.2 / 1.1


def test_without_a_stabilisation_time_the_pool_shrinks_at_once() -> None:
    config = replace(CONFIG, windows=WindowConfig(stabilisation_seconds=0.0))
    assert decide_on(*steady(10, 4, running_requests=1.0), config=config).target == 3


def test_a_pool_without_headroom_is_steady() -> None:
    decision = decide_on(*steady(10, 310, running_requests=4.8))
    assert (decision.target, decision.reason) == (10, "steady")


def test_missing_data_of_one_rule_holds_and_the_others_may_grow() -> None:
    calm = steady(10, 310, running_requests=0.0)
    silent_pool = [pool(at, *(silent(f"r{index}") for index in range(10))) for at in (312, 314, 316, 318, 320)]
    decision = decide_on(*calm, *silent_pool)
    assert (decision.target, decision.reason, decision.recommended) == (10, "missing_data", None)
    no_wait = steady(10, 310, running_requests=0.0, expected_wait_seconds=None, waiting_tokens=None)
    assert decide_on(*no_wait).reason == "missing_data"
    busy = steady(10, 60, running_requests=9.0, expected_wait_seconds=None, waiting_tokens=None)
    assert decide_on(*busy).target == 18
    none = AutoscalerConfig(targets=TargetConfig(wait_seconds=None, concurrency_ratio=None, kv_usage_ratio=None))
    assert decide_on(*calm, config=none).reason == "missing_data"


def test_one_silent_sample_is_no_missing_data() -> None:
    calm = steady(10, 304, running_requests=1.0)
    calm[-1] = pool(304, *(silent(f"r{index}") for index in range(10)))
    assert decide_on(*calm).reason == "shrink"


def changes_of(*pairs: tuple[float, int]) -> list[Change]:
    """Return changes from times and directions."""
    return [Change(at, 10, 10 + direction) for at, direction in pairs]


@for_each(
    ("pairs", "held_until"),
    [
        ((), 0), (((0, 1),), 0), (((0, -1),), 0),
        (((0, -1), (100, 1)), 700), (((0, -1), (700, 1)), 0),
        (((0, 1), (50, -1), (100, 1), (150, 1)), 750),
        (((0, -1), (100, 1), (710, -1), (800, 1)), 2000),
        (((0, -1), (100, 1), (710, -1), (800, 1), (2100, -1), (2200, 1), (4700, -1), (4800, 1)), 7200),
        (((0, -1), (100, 1), (710, -1), (2000, 1)), 0),
    ],
)  # fmt: skip
def test_a_growth_that_takes_a_shrinking_back_holds_the_pool(
    pairs: tuple[tuple[float, int], ...], held_until: float
) -> None:
    changes = changes_of(*pairs)
    last = pairs[-1][0] if pairs else 0.0
    assert is_reversal_held(changes, 600.0, last) == (held_until > 0)
    if held_until:
        assert is_reversal_held(changes, 600.0, held_until - 1)
        assert not is_reversal_held(changes, 600.0, held_until)


def test_a_held_reversal_stops_the_shrinking() -> None:
    history, decision = history_of(CONFIG, steady(10, 304, running_requests=1.0))
    assert decision.reason == "shrink"
    history.changes.extend(changes_of((200, -1), (250, 1)))
    assert need_of_rules(history, CONFIG, 10, 304.0).reason == "reversal_hold"


THRESHOLDS = AutoscalerConfig(
    max_replicas=50,
    thresholds=ThresholdConfig(
        queue_high=None, queue_low=None, grow_seconds=20, shrink_seconds=40, cooldown_seconds=30
    ),
)


def by_thresholds(*samples: PoolSample, changed_at: float | None = None) -> tuple[int, str]:
    history, _ = history_of(THRESHOLDS, samples)
    if changed_at is not None:
        history.changes.append(Change(changed_at, 2, 3))
    newest = history.newest
    assert newest is not None
    need = need_of_thresholds(history, THRESHOLDS, len(newest.replicas), newest.at_seconds)
    return need.target, need.reason


def test_thresholds_change_the_pool_by_one() -> None:
    assert by_thresholds(*steady(3, 20, cpu_ratio=0.9)) == (4, "growth")
    assert by_thresholds(*steady(3, 14, cpu_ratio=0.9)) == (3, "steady")
    assert by_thresholds(*steady(3, 40, cpu_ratio=0.1)) == (2, "shrink")
    assert by_thresholds(*steady(3, 30, cpu_ratio=0.1)) == (3, "steady")
    assert by_thresholds(*steady(3, 40, cpu_ratio=0.5)) == (3, "steady")
    assert by_thresholds(*steady(3, 40)) == (3, "missing_data")


def test_thresholds_wait_for_the_cooldown_and_for_replicas_that_start() -> None:
    high = steady(3, 20, cpu_ratio=0.9)
    assert by_thresholds(*high, changed_at=0.0) == (3, "cooldown")
    assert by_thresholds(*high, changed_at=-11.0) == (4, "growth")
    for age, reason in ((10.0, "starting"), (121.0, "growth")):
        coming = pool(22, *replicas_of(3, cpu_ratio=0.9), silent("new", STARTING, age_seconds=age))
        assert by_thresholds(*high, coming)[1] == reason
