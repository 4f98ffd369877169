"""Faults of transformers' manager, each as a test: a bad request fails alone, its neighbour finishes, all go on.

D1 to D9 are inputs of a single request that end transformers' engine, or that it changes silently. Here they run on a
real model, as a module of transformers and (D1, D2) with so few blocks that the cache is full.
"""

import asyncio
import queue
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from chairlift.core.errors import DuplicateRequestId, EngineDead
from chairlift.llm.transformers_compat.manager import ContinuousBatchingManager
from chairlift.llm.transformers_compat.request_status import RequestStatus
from support_inline import StepGate
from support_transformers_compat import FAKE, SLOW, fake_manager, float32_model, generated, greedy_tokens

GOOD = [5, 6, 7, 8, 9]


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def model(request: pytest.FixtureRequest) -> Any:
    return float32_model(request.param)


@pytest.fixture(scope="module")
def manager(model: Any) -> Iterator[ContinuousBatchingManager]:
    manager = ContinuousBatchingManager(model, num_blocks=12, page_size=16, max_new_tokens=10, eos_token_id=-1)
    manager.start()
    yield manager
    assert manager.client is not None and manager.client.check_integrity() == []
    manager.stop()
    manager.destroy()


@pytest.fixture
def neighbour(model: Any, manager: ContinuousBatchingManager) -> Iterator[None]:
    """Add a good request; at the end it and a later one have the tokens of generate()."""
    manager.add_request(GOOD, "neighbour")
    yield
    manager.add_request(GOOD, "later")
    for name in ("neighbour", "later"):
        output = manager.get_result(name, 60)
        assert output is not None and output.generated_tokens == generated(model, GOOD, 10), name
    assert manager.is_running() and not manager.open_requests and manager.output_queue.empty()


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        pytest.param([3] * 250, {}, "blocks", id="D1-prompt-larger-than-the-cache"),
        pytest.param([3] * 40, {"max_new_tokens": 300}, "blocks", id="D1-output-larger-than-the-cache"),
        pytest.param([3], {"max_new_tokens": 10**6}, "context length", id="D1-output-longer-than-the-context"),
        pytest.param([3, 99999], {}, "token id 99999 is outside the vocabulary", id="D4-token-outside"),
        pytest.param([3, -1], {}, "token id -1 is outside the vocabulary", id="D4-negative-token"),
        pytest.param([], {}, "0 tokens", id="empty-prompt"),
        pytest.param([3], {"top_k": 0, "top_p": -3}, "top_p must be between 0 and 1, got -3", id="D8-top-p"),
        pytest.param([3], {"temperature": -1.0}, "temperature must be", id="negative-temperature"),
        pytest.param([3], {"temperature": float("nan")}, "temperature must be", id="temperature-nan"),
        pytest.param([3] * 5000, {}, "the limit is", id="D9-positions-beyond-the-context"),
        pytest.param([3], {"repetition_penalty": 0.0}, "repetition_penalty must be", id="repetition-penalty"),
        pytest.param([3], {"no_such_field": 1}, "no_such_field is no parameter", id="unknown-field"),
        pytest.param([3], {"timeout": -2.0}, "timeout must be", id="timeout"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("neighbour")
def test_a_request_that_cannot_be_served_fails_alone_with_its_reason(
    manager: ContinuousBatchingManager, prompt: list[int], options: dict[str, Any], message: str
) -> None:
    name = manager.add_request(prompt, **options)
    output = manager.get_result(name, 60)
    assert output is not None and output.status is RequestStatus.FAILED and output.is_finished()
    assert output.error is not None and message in output.error and output.generated_tokens == []


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"temperature": 0.0}, id="D5-temperature-0"), pytest.param({"temperature": 0}, id="D5-integer"),
        pytest.param({"do_sample": False, "temperature": 0.7}, id="do-sample-false"),
        pytest.param({"top_k": 10**6}, id="D6-top-k-above-the-vocabulary"), pytest.param({"top_k": 0}, id="D8-top-k-0"),
        pytest.param({"top_k": 1, "do_sample": True, "seed": 3}, id="sampled-from-one"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("neighbour")
def test_values_that_have_a_meaning_are_served(
    model: Any, manager: ContinuousBatchingManager, options: dict[str, Any]
) -> None:
    name = manager.add_request(GOOD, **options)
    output = manager.get_result(name, 60)
    assert output is not None and output.generated_tokens == generated(model, GOOD, 10)


@pytest.mark.usefixtures("neighbour")
def test_d6_sampling_with_a_top_k_above_the_vocabulary_is_sampling_from_all(manager: ContinuousBatchingManager) -> None:
    runs = [{"top_k": 10**6}, {"top_k": 0}, {}]
    names = [manager.add_request(GOOD, do_sample=True, temperature=1.5, seed=7, **each) for each in runs]
    tokens = [output.generated_tokens for output in (manager.get_result(name, 60) for name in names) if output]
    assert tokens[0] == tokens[1] == tokens[2] and len(tokens[0]) == 10


@pytest.mark.full
def test_d2_requests_without_any_limit_are_bounded_and_end(model: Any) -> None:
    """Six outputs without max_new_tokens and without an end of sequence, in a cache for two."""
    manager = ContinuousBatchingManager(model, num_blocks=12, page_size=16, eos_token_id=-1)
    manager.start()
    prompts = [[number, *GOOD] for number in range(10, 16)]
    names = manager.add_requests(prompts)
    for name, prompt in zip(names, prompts, strict=True):
        output = manager.get_result(name, 120)
        assert output is not None and output.status is RequestStatus.FINISHED and output.finish_reason == "length"
        assert len(prompt) + len(output.generated_tokens) == 12 * 16 + 1
    tokens = output.generated_tokens
    assert tokens == generated_without_end(model, prompts[-1], len(tokens))
    manager.stop()


def generated_without_end(model: Any, prompt: list[int], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        output = model.generate(ids, max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0)
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens


@pytest.mark.parametrize("is_running", [False, True])
def test_d3_the_second_request_of_an_id_fails_alone(is_running: bool) -> None:
    gate = StepGate()
    with fake_manager(hook=gate, start=False) as manager:
        manager.add_request(GOOD, "a", 6)
        if is_running:
            manager.start()
            assert gate.entered.wait(20)
        with pytest.raises(DuplicateRequestId, match="a"):
            manager.add_request([1, 2], "a", 3)
        gate.opened.set()
        manager.start()
        output = manager.get_result("a", 20)
        assert output is not None and output.generated_tokens == greedy_tokens(GOOD, 6)
        assert manager.get_result("a") is None
        manager.add_request([1, 2], "a", 3)
        output = manager.get_result("a", 20)
        assert output is not None and output.generated_tokens == greedy_tokens([1, 2], 3)


def test_d7_a_cancelled_request_has_a_last_output_for_readers_and_handlers() -> None:
    with fake_manager(SLOW) as manager:
        outputs: list[Any] = []
        manager.add_request(GOOD, "read", 200, streaming=True)
        assert manager.get_result("read", 20) is not None
        manager.cancel_request("read")
        last = [*manager.request_id_iter("read")][-1]
        assert (last.status, last.finish_reason) == (RequestStatus.CANCELLED, "abort")
        assert last.generated_tokens == greedy_tokens(GOOD, 200)[: len(last.generated_tokens)]

        async def client() -> None:
            ended = asyncio.Event()

            def handle(output: Any) -> None:
                outputs.append(output.status)
                ended.set() if output.is_finished() else None

            manager.register_result_handler("handled", handle)
            manager.add_request(GOOD, "handled", 200, streaming=True)
            await asyncio.sleep(0.05)
            manager.cancel_request("handled")
            await asyncio.wait_for(ended.wait(), 20)

        asyncio.run(client())
        assert outputs[-1] is RequestStatus.CANCELLED and set(outputs[:-1]) == {RequestStatus.DECODING}
        assert manager.output_queue.num_handlers == 0 and manager.output_queue.empty()


def test_get_result_of_one_request_takes_no_other_output_away() -> None:
    with fake_manager() as manager:
        names = manager.add_requests([GOOD] * 5, 4)
        for name in reversed(names):
            output = manager.get_result(name, 20)
            assert output is not None and output.request_id == name
        assert manager.get_result("of nobody") is None and manager.get_result(names[0]) is None


def test_a_row_that_fails_leaves_its_neighbours_and_a_step_that_fails_leaves_the_engine() -> None:
    with fake_manager(replace(FAKE, nan=90)) as manager:
        manager.add_request([5, 90], "nan", 5)
        manager.add_request(GOOD, "good", 5)
        nan, good = manager.get_result("nan", 20), manager.get_result("good", 20)
        assert nan is not None and nan.status is RequestStatus.FAILED and nan.error
        assert good is not None and good.generated_tokens == greedy_tokens(GOOD, 5)
    with fake_manager(replace(FAKE, poison=90)) as manager:
        manager.add_request(GOOD, "before", 30, streaming=True)
        manager.add_request([5, 90], "poison", 5)
        poison = manager.get_result("poison", 20)
        assert poison is not None and poison.status is RequestStatus.FAILED
        manager.add_request(GOOD, "after", 5)
        after = manager.get_result("after", 20)
        assert after is not None and after.generated_tokens == greedy_tokens(GOOD, 5)
        assert [*manager.request_id_iter("before")][-1].is_finished()


def test_an_engine_that_dies_fails_its_requests_says_so_and_can_be_started_again() -> None:
    gate = StepGate()
    with fake_manager(hook=gate) as manager:
        manager.add_request(GOOD, "a", 50)
        assert gate.entered.wait(20)
        client = manager.client
        assert client is not None
        closer = threading.Thread(target=client.close)
        closer.start()
        gate.opened.set()
        closer.join(20)
        output = manager.get_result("a", 20)
        assert output is not None and output.status is RequestStatus.FAILED and output.error
        assert not manager.is_running() and list(manager) == []
        with pytest.raises(EngineDead):
            manager.add_request(GOOD, "b", 5)
        manager.start()
        manager.add_request(GOOD, "b", 5)
        output = manager.get_result("b", 20)
        assert output is not None and output.generated_tokens == greedy_tokens(GOOD, 5)


def test_an_idle_reader_ends_when_the_engine_ends_without_an_output() -> None:
    with fake_manager() as manager:
        outputs: list[Any] = []
        reader = threading.Thread(target=lambda: outputs.extend(manager))
        reader.start()
        assert manager.client is not None
        manager.client.close()
        reader.join(20)
        assert not reader.is_alive() and outputs == []


def test_a_full_queue_does_not_block_an_event_loop() -> None:
    gate = StepGate()
    with fake_manager(hook=gate, max_queue_size=1) as manager:
        manager.add_request(GOOD, "a", 3)

        async def client() -> None:
            with pytest.raises(queue.Full):
                manager.add_request(GOOD, "b", 3)

        asyncio.run(asyncio.wait_for(client(), 5))
        gate.opened.set()
        assert manager.get_result("a", 20) is not None


def test_the_last_allowed_token_that_ends_the_sequence_is_a_stop() -> None:
    tokens = greedy_tokens(GOOD, 8)
    count = tokens.index(tokens[5]) + 1
    with fake_manager() as manager:
        output = manager.get_result(manager.add_request(GOOD, max_new_tokens=count, eos_token_id=tokens[5]), 20)
        assert output is not None and (output.finish_reason, len(output.generated_tokens)) == ("stop", count)
