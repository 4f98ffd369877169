"""PooledStates, and requests for embeddings on a fake model: chunked, preempted, retried, beside others."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from chairlift.core.engine_output import FinishReason
from chairlift.core.errors import ContextLengthExceeded, ForwardFailed, InvalidRequest, NonFiniteLogits
from chairlift.engine.embedding_pooling import PooledStates
from chairlift.engine.request_validation import validate_request
from chairlift.engine.runner.fake_model import FakeConfig, expected_embedding
from chairlift.engine.step_plan import StepPlan
from support_engine import EngineHarness, make_request
from support_shares import for_each

FAKE = FakeConfig(vocab_size=50, max_model_len=64, num_blocks=64, block_size=4)
STATES = np.array([1.0, -2.0], np.float32)


def floats(embedding: bytes) -> list[float]:
    numbers: list[float] = np.frombuffer(embedding, np.float32).tolist()
    return numbers


def embedding_request(name: str, prompt: Any, pooling: str = "mean", **options: Any) -> Any:
    return make_request(name, prompt, 1, pooling=pooling, **options)


def test_mean_is_of_all_tokens_and_last_is_as_it_came() -> None:
    mean, last = PooledStates("mean"), PooledStates("last")
    mean.add(STATES, 3)
    mean.add(STATES, 1)
    last.add(None, 3)
    last.add(STATES, 1)
    assert floats(mean.embedding()) == [0.5, -1.0]
    assert floats(last.embedding()) == [1.0, -2.0]


def test_cleared_states_do_not_count() -> None:
    mean = PooledStates("mean")
    mean.add(np.array([5.0, 5.0], np.float32), 2)
    mean.clear()
    mean.add(STATES, 1)
    assert floats(mean.embedding()) == [1.0, -2.0]


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e300])
def test_states_that_are_no_float32_number_fail(number: float) -> None:
    states = PooledStates("last")
    states.add(np.array([number, 1.0]), 1)
    with pytest.raises(NonFiniteLogits):
        states.embedding()


def test_a_runner_without_hidden_states_fails_the_request_only() -> None:
    with pytest.raises(ForwardFailed):
        PooledStates("last").embedding()


@for_each("pooling", ["last", "mean"])
@for_each("options", [{}, {"overlap": True}, {"max_chunk_tokens": 3}, {"max_chunk_tokens": 1}])
def test_embeddings_beside_generation_are_those_of_each_prompt_alone(pooling: str, options: dict[str, Any]) -> None:
    harness = EngineHarness(FAKE, max_batch_tokens=16, max_running_requests=8, **options)
    prompts = [[1], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8, 9], list(range(1, 40))]
    for number, prompt in enumerate(prompts):
        harness.submit(embedding_request(f"embed {number}", prompt, pooling), make_request(f"chat {number}", prompt, 6))
    harness.drain()
    for number, prompt in enumerate(prompts):
        final = harness.finals[f"embed {number}"]
        assert final.finish_reason is FinishReason.STOP and not final.token_ids
        assert final.usage is not None and final.usage.completion_tokens == 0
        assert floats(final.embedding) == pytest.approx(expected_embedding(prompt, pooling, FAKE), abs=1e-6)
        assert len(harness.tokens[f"chat {number}"]) == 6
    harness.close()


def test_last_reuses_a_cached_prefix_and_mean_computes_every_token() -> None:
    harness = EngineHarness(FAKE)
    prompt = list(range(1, 18))
    harness.submit(make_request("first", prompt, 2))
    harness.drain()
    harness.submit(embedding_request("last", prompt, "last"))
    harness.submit(embedding_request("mean", prompt, "mean"))
    harness.drain()
    cached = {name: final.usage.cached_tokens for name, final in harness.finals.items() if final.usage}
    assert cached == {"first": 0, "last": 16, "mean": 0}
    harness.close()


def test_a_preempted_prompt_has_no_state_twice() -> None:
    harness = EngineHarness(FAKE, max_batch_tokens=8, max_running_requests=4)
    harness.submit(embedding_request("embed", list(range(1, 30))))
    harness.step(2)
    sequence = harness.sequence("embed")
    assert 0 < sequence.num_computed_tokens < 29
    harness.scheduler.table.preempt(sequence, harness.clock.now())
    harness.drain()
    expected = expected_embedding(list(range(1, 30)), "mean", FAKE)
    assert floats(harness.finals["embed"].embedding) == pytest.approx(expected, abs=1e-6)
    harness.close()


def test_a_preemption_with_the_last_chunk_in_flight_still_ends_once() -> None:
    harness = EngineHarness(FAKE, max_batch_tokens=64, overlap=True)
    harness.submit(embedding_request("embed", list(range(1, 30))), make_request("other", [3, 4], 9))
    while not harness.sequence("embed").num_pending_samples:
        harness.step()
    harness.scheduler.table.preempt(harness.sequence("embed"), harness.clock.now())
    harness.drain()
    assert harness.finals["embed"].finish_reason is FinishReason.STOP
    harness.close()


@pytest.mark.parametrize("stage", ["launch", "collect"])
def test_chunks_of_failed_steps_count_once(stage: str) -> None:
    failing = {1, 2}

    def hook(plan: StepPlan, at: str) -> None:
        if at == stage and plan.step_id in failing:
            raise RuntimeError("chosen to fail")

    harness = EngineHarness(FAKE, hook=hook, max_batch_tokens=8)
    harness.submit(embedding_request("embed", list(range(1, 30))), embedding_request("other", list(range(2, 9))))
    harness.drain()  # check_outputs compares every embedding that was made
    assert harness.scheduler.counters.failed_steps
    assert any(final.embedding for final in harness.finals.values())
    harness.close()


def test_a_prompt_may_fill_the_context() -> None:
    harness = EngineHarness(FAKE)
    harness.submit(embedding_request("embed", [1] * FAKE.max_model_len))
    harness.drain()
    assert harness.finals["embed"].finish_reason is FinishReason.STOP
    with pytest.raises(ContextLengthExceeded, match="65"):
        validate_request(embedding_request("long", [1] * 65), harness.loop.limits)
    harness.close()


@pytest.mark.parametrize(
    "request_options", [{"n": 2}, {"prompt_logprobs": 0}, {"max_tokens": 2}], ids=lambda options: next(iter(options))
)
def test_what_an_embedding_cannot_be_combined_with(request_options: dict[str, Any]) -> None:
    harness = EngineHarness(FAKE)
    options = {"max_tokens": 1} | request_options
    request = make_request("embed", [1, 2], pooling="mean", **options)
    with pytest.raises(InvalidRequest, match="embedding"):
        validate_request(request, harness.loop.limits)
    with pytest.raises(InvalidRequest, match="no embeddings"):
        validate_request(embedding_request("embed", [1]), replace(harness.loop.limits, hidden_size=0))
    harness.close()


def test_an_unknown_pooling_is_named() -> None:
    with pytest.raises(InvalidRequest, match="pooling must be last or mean, got 'max'"):
        embedding_request("embed", [1], "max")
