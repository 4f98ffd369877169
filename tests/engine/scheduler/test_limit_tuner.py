"""decide_limits: its decisions as tables; LimitTuner: the samples of an engine's steps; an engine with it."""

import logging
from dataclasses import replace
from typing import Any

import pytest

from chairlift.engine.kv.block_pool import BlockCounts
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.engine.scheduler.engine_limits import EngineLimits
from chairlift.engine.scheduler.limit_tuner import LimitsDecision, LimitTuner
from support_engine import EngineHarness, make_request
from support_limits import CONFIG, HALF, HIGHEST, LOWEST, NOW, decide
from support_step_stats import make_stats


@pytest.mark.parametrize("share", [0.7, 0.8, 0.89])
def test_limits_that_are_used_as_planned_stay(share: float) -> None:
    used = {"running": int(100 * share), "tokens": int(1000 * share), "blocks": int(5000 * share)}
    assert decide(**used) == LimitsDecision(HALF, {})


@pytest.mark.parametrize(
    ("fields", "changes", "reason"),
    [
        ({"running": 60}, {"max_running_requests": 80}, "at most 60 of 100 requests ran in 10 s"),
        ({"running": 75 - 6}, {"max_running_requests": 80}, "at most 69 of 100"),
        ({"tokens": 690}, {"max_batch_tokens": 800}, "at most 690 of 1000 tokens were in a step in 10 s"),
        ({"blocks": 100}, {"num_blocks": 4000}, "at most 100 of 5000 blocks were in use in 10 s"),
    ],
)  # fmt: skip
def test_a_limit_falls_only_after_a_whole_window_of_low_use(
    fields: dict[str, Any], changes: dict[str, int], reason: str
) -> None:
    decision = decide(**fields)
    assert decision.limits == replace(HALF, **changes)
    assert [text.startswith(reason) for text in decision.reasons.values()] == [True]
    assert decide(seconds=8, **fields).limits == HALF, "the window is not covered"
    peaks = {"running": 80, "tokens": 800, "blocks": 4000}
    assert decide(before=peaks, **fields).limits == HALF, "the window has a peak"


def test_a_full_cache_that_cannot_grow_lowers_the_running_requests() -> None:
    full = replace(HALF, num_blocks=HIGHEST.num_blocks)
    decision = decide(seconds=1, limits=full, blocks=10_000, preemptions=5)
    assert decision.limits == replace(full, max_running_requests=64)
    assert decision.reasons["max_running_requests"] == "5 preemptions in a full KV cache"


def test_limits_stay_within_their_bounds_whatever_is_measured() -> None:
    current = HALF
    for step in range(40):
        idle = {"running": 0, "tokens": 1, "blocks": 0} if step < 20 else {
            "running": 500, "waiting": 5000, "tokens": 5000, "blocks": 50_000,
        }  # fmt: skip
        current = decide(limits=current, **idle).limits
        if step == 19:
            assert current == LOWEST
    assert current == HIGHEST


def test_a_step_has_a_token_for_each_running_request() -> None:
    config = replace(CONFIG, lowest=replace(LOWEST, max_batch_tokens=4))
    small = replace(HALF, max_batch_tokens=100)
    decision = decide(config, seconds=1, limits=small, running=100, waiting=80, tokens=80)
    assert (decision.limits.max_running_requests, decision.limits.max_batch_tokens) == (200, 200)
    assert decision.reasons["max_batch_tokens"] == "each running request may have a token in a step"


def test_samples_under_other_limits_do_not_count() -> None:
    decision = decide(before={"limits": HIGHEST}, running=10)
    assert decision == LimitsDecision(HALF, {})


def test_the_tuner_takes_a_sample_for_each_interval() -> None:
    tuner = LimitTuner(CONFIG)
    pool = BlockCounts(total=10_000, free=0, cached=9000, held=1000)
    decisions = [
        tuner.record(
            make_stats(step, num_sequences=5, num_tokens=5, running=5), NOW + step / 10 - 0.05, NOW + step / 10,
            pool=pool, cached_tokens=0,
        )
        for step in range(120)
    ]  # fmt: skip
    samples = list(tuner._samples)
    assert len(samples) == 10 and {sample.running for sample in samples} == {5}
    assert samples[-1].step_ms == pytest.approx(50) and samples[-1].blocks == 1000, "cached blocks were not hit"
    changed = [decision for decision in decisions if decision is not None]
    assert [decision.limits for decision in changed] == [EngineLimits(
        max_running_requests=205, max_batch_tokens=1639, num_blocks=8000
    )]  # fmt: skip
    tuner.record(make_stats(0, running=5), NOW + 20, NOW + 20, pool=pool, cached_tokens=64)
    tuner.record(make_stats(0, running=5), NOW + 21, NOW + 21, pool=pool, cached_tokens=64)
    assert tuner._samples[-1].blocks == 10_000, "prompts hit the cached blocks"


def run_engine(**options: Any) -> EngineHarness:
    """Run a few requests at once for 25 seconds, then many, in an engine whose steps take 50 ms each."""
    fake = FakeConfig(num_blocks=200, block_size=4, max_model_len=64, seconds_per_step=0.05)
    harness = EngineHarness(fake, max_running_requests=32, **options)
    for number in range(90):
        prompt = [(number * 11 + place * number) % fake.vocab_size for place in range(5 + number % 20)]
        harness.submit(make_request(str(number), prompt, 30, seed=number))
        for _ in range(12 if number < 40 else 0):
            if not harness.loop.is_idle:
                harness.step()
    harness.drain()
    return harness


def test_tokens_are_the_same_with_and_without_tuning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="chairlift.engine.engine_loop"):
        tuned = run_engine(tune_limits=True, min_running_requests=2, min_batch_tokens=16)
    plain = run_engine()
    assert tuned.tokens == plain.tokens and len(tuned.tokens) == 90
    tuned.check_outputs(no_faults=True)
    changes = [record.message for record in caplog.records if record.message.startswith("limit ")]
    assert any(message.startswith("limit num_blocks: 200 -> 160: at most ") for message in changes)
    assert any(message.startswith("limit max_running_requests: 32 -> 26: at most ") for message in changes)
    assert any(record.message.startswith("released 40 bytes of 40 KV blocks") for record in caplog.records)
    assert any(" requests wait and " in message for message in changes), "the limit rises with the burst"
    assert tuned.cache.pool.limit == tuned.scheduler.table.limits.num_blocks and plain.cache.pool.limit == 200
    tuned.close()
    plain.close()
