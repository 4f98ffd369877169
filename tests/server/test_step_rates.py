"""StepRates: prefill over the time of steps with prompt tokens, output over the last seconds."""

import pytest

from chairlift.core.clock import FakeClock
from chairlift.server.step_rates import OUTPUT_SECONDS, StepRates
from support_step_stats import make_stats


def test_nothing_is_known_before_the_first_step() -> None:
    rates = StepRates(FakeClock())
    assert rates.prefill_tokens_per_second == rates.output_tokens_per_second == 0.0


def test_prefill_is_measured_over_the_time_of_steps_with_prompt_tokens() -> None:
    rates = StepRates(FakeClock())
    rates.record(make_stats(num_prefill_tokens=100, schedule_ms=1, launch_ms=4, collect_ms=90, commit_ms=5))
    assert rates.prefill_tokens_per_second == pytest.approx(1000)
    rates.record(make_stats(num_outputs=5, collect_ms=500))
    assert rates.prefill_tokens_per_second == pytest.approx(1000), "a step of outputs alone does not count"
    for _ in range(200):
        rates.record(make_stats(num_prefill_tokens=300, collect_ms=100))
    assert rates.prefill_tokens_per_second == pytest.approx(3000, rel=0.001), "old steps are forgotten"


def test_output_is_measured_over_the_last_seconds() -> None:
    clock = FakeClock()
    rates = StepRates(clock)
    for _ in range(100):
        clock.advance(0.01)
        rates.record(make_stats(num_outputs=4))
    assert rates.output_tokens_per_second == pytest.approx(400, rel=0.01), "soon after the start"
    for _ in range(10_000):
        clock.advance(0.01)
        rates.record(make_stats(num_outputs=8))
    assert rates.output_tokens_per_second == pytest.approx(800, rel=0.01)
    clock.advance(10 * OUTPUT_SECONDS)
    assert rates.output_tokens_per_second < 0.1, "an idle engine has no output"
