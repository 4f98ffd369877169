"""SchedulerConfig: invalid limits are rejected with both numbers; derived limits never contradict them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis.strategies import integers, none

from chairlift.core.errors import ConfigError
from chairlift.engine.config import CacheConfig, SchedulerConfig, with_auto_length
from support_shares import for_each


@for_each(
    ("option", "value", "low"),
    [
        ("max_batch_tokens", 0, 1), ("max_running_requests", 0, 1), ("max_prefill_tokens", 0, 1),
        ("long_prefill_threshold", -1, 1), ("max_chunk_tokens", 0, 1), ("max_queue_size", 0, 1),
        ("max_model_len", 1, 2), ("protect_after_preemptions", 0, 1), ("max_bypass", -1, 0),
        ("prefix_wait_steps", -1, 0),
    ],
)  # fmt: skip
def test_an_option_below_its_bound_is_refused(option: str, value: int, low: int) -> None:
    with pytest.raises(ConfigError, match=f"{option} must be at least {low}, got {value}") as caught:
        SchedulerConfig(**{option: value})
    assert caught.value.details == {"option": option}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_blocks": 0}, "num_blocks must be at least 1, got 0"),
        ({"num_blocks": 1, "block_size": 0}, "block_size must be at least 1, got 0"),
        ({"num_blocks": 1, "windows": ()}, "at least one layer group"),
        ({"num_blocks": 1, "windows": (None, 0)}, r"windows\[1\] must be at least 1, got 0"),
        ({"num_blocks": 1, "num_state_checkpoints": -1}, "num_state_checkpoints must be at least 0, got -1"),
    ],
)
def test_an_impossible_cache_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CacheConfig(**options)


def test_states_are_shared_where_a_model_has_them_and_prefixes_and_checkpoints_exist() -> None:
    options: dict[str, Any] = {"has_state": True, "enable_prefix_caching": True, "num_state_checkpoints": 1}
    assert CacheConfig(num_blocks=1, windows=(), **options).shares_states
    for name in options:
        assert not CacheConfig(num_blocks=1, **{**options, name: 0}).shares_states


limit = none() | integers(1, 50)


@given(integers(1, 50), integers(1, 50), limit, limit, limit)
def test_derived_limits_stay_within_those_that_were_given(
    batch: int, running: int, prefill: int | None, threshold: int | None, chunk: int | None
) -> None:
    config = SchedulerConfig(
        max_batch_tokens=batch, max_running_requests=running, max_prefill_tokens=prefill,
        long_prefill_threshold=threshold, max_chunk_tokens=chunk,
    )  # fmt: skip
    assert 1 <= config.max_running_sequences <= min(batch, running)
    assert 1 <= config.fair_prefill_chunk <= config.max_prefill_chunk <= config.prefill_budget <= batch
    assert config.prefill_budget <= (prefill or batch) and config.max_prefill_chunk <= (chunk or batch)
    assert config.fair_prefill_chunk <= config.final_prefill_chunk <= config.max_prefill_chunk
    assert config.final_prefill_chunk <= (threshold or 2 * config.fair_prefill_chunk)


def test_the_fair_chunk_is_a_quarter_of_the_prompt_tokens_of_a_step() -> None:
    assert SchedulerConfig(max_batch_tokens=2048).fair_prefill_chunk == 512
    assert SchedulerConfig(max_batch_tokens=3).fair_prefill_chunk == 1


def test_the_final_chunk_is_half_of_them_by_default() -> None:
    assert SchedulerConfig(max_batch_tokens=2048).final_prefill_chunk == 1024
    assert SchedulerConfig(max_batch_tokens=2048, max_chunk_tokens=600).final_prefill_chunk == 600
    assert SchedulerConfig(max_batch_tokens=2048, long_prefill_threshold=100).final_prefill_chunk == 100


def test_overlap_means_two_launches() -> None:
    assert (SchedulerConfig().max_in_flight_steps, SchedulerConfig(overlap=True).max_in_flight_steps) == (1, 2)


def test_the_runners_default_holds_where_nothing_is_set() -> None:
    assert SchedulerConfig().with_runner_defaults(256).prefill_budget == 256
    assert SchedulerConfig(max_batch_tokens=64).with_runner_defaults(256).prefill_budget == 64
    assert SchedulerConfig(max_prefill_tokens=1000).with_runner_defaults(256).prefill_budget == 1000
    assert SchedulerConfig().with_runner_defaults(None) == SchedulerConfig(overlap=False)
    assert SchedulerConfig().with_runner_defaults(None, overlap=True).max_in_flight_steps == 2
    assert SchedulerConfig(overlap=False).with_runner_defaults(None, overlap=True).max_in_flight_steps == 1


def test_the_length_auto_is_that_of_the_cache() -> None:
    options = {"max_model_len": "auto", "max_batch_tokens": 7}
    config = SchedulerConfig(**with_auto_length(options))
    assert (config.max_model_len, config.fits_length_to_cache, config.max_batch_tokens) == (None, True, 7)
    assert options["max_model_len"] == "auto"
    assert with_auto_length({"max_model_len": 9}) == {"max_model_len": 9} and with_auto_length({}) == {}
