"""Step limits: the most generous one, what a period has used up, and pools without a replica."""

from chairlift.autoscaler.config import AutoscalerConfig, StepLimit
from chairlift.autoscaler.history import Change
from chairlift.autoscaler.limits.step_limits import limit_step
from support_shares import for_each

LIMITS = (StepLimit(num_replicas=2, period_seconds=60), StepLimit(ratio=0.5, period_seconds=60))
CONFIG = AutoscalerConfig(max_replicas=100, growth_limits=LIMITS, shrink_limits=LIMITS)


@for_each(
    ("current", "target", "changes", "expected"),
    [
        (10, 30, [], 15), (10, 12, [], 12), (2, 30, [], 4), (0, 30, [], 2),
        (15, 30, [(70, 10, 15)], 15), (15, 30, [(30, 10, 15)], 22), (12, 30, [(70, 10, 12)], 15),
        (10, 1, [], 5), (10, 9, [], 9), (2, 0, [], 0), (5, 1, [(70, 10, 5)], 5), (7, 1, [(70, 10, 7)], 5),
        (10, 30, [(70, 15, 10)], 15),  # what has shrunk does not count for growth
    ],
)  # fmt: skip
def test_the_step_within_a_period(
    current: int, target: int, changes: list[tuple[float, int, int]], expected: int
) -> None:
    assert limit_step(target, current, [Change(*each) for each in changes], CONFIG, 100.0) == expected


def test_without_limits_every_step_is_possible() -> None:
    assert limit_step(90, 1, [], AutoscalerConfig(), 0.0) == 90
    assert limit_step(0, 90, [], AutoscalerConfig(), 0.0) == 0


def test_a_pool_of_one_grows_and_shrinks_by_a_ratio_too() -> None:
    config = AutoscalerConfig(growth_limits=(StepLimit(ratio=0.1),), shrink_limits=(StepLimit(ratio=0.1),))
    assert limit_step(9, 1, [], config, 0.0) == 2
    assert limit_step(9, 0, [], config, 0.0) == 1
    assert limit_step(0, 1, [], config, 0.0) == 0
