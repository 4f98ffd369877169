"""ContinuousBatchProcessor: stepped by hand it generates what generate() does; one of a client shows its engine."""

import queue
import threading
from typing import Any

import pytest
import torch

from chairlift import (
    ContinuousBatchProcessor,
    FIFOScheduler,
    PagedAttentionCache,
    PrefillFirstScheduler,
    RequestState,
    RequestStatus,
)
from chairlift.core.errors import ConfigError
from chairlift.engine.config import CacheConfig, SchedulerConfig
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.runner.fake import FakeRunner
from chairlift.llm.transformers_compat.result_queue import ResultQueue
from support_engine import make_request
from support_inline import FAKE, WAIT_SECONDS, StepGate, start_client
from support_models import tiny_hf_model
from support_transformers_compat import float32_model, generated, greedy_tokens, random_prompts


def processor_of(kind: str, scheduler: Any = FIFOScheduler, **options: Any) -> ContinuousBatchProcessor:
    """Make a processor in the way of transformers: cache, scheduler, processor; the model comes with the first step."""
    config = float32_model(kind).config
    cache = PagedAttentionCache(config, {"num_blocks": 64, "block_size": 4}, "cpu", torch.float32)
    return ContinuousBatchProcessor(
        cache=cache, config=config, generation_config=None, input_queue=queue.Queue(), cancel_queue=queue.Queue(),
        model_device="cpu", model_dtype=torch.float32, scheduler=scheduler(cache, None, 4), **options,
    )  # fmt: skip


def loop_processor(**options: Any) -> ContinuousBatchProcessor:
    loop = EngineLoop(FakeRunner(FAKE), SchedulerConfig(**options))
    loop.start()
    return ContinuousBatchProcessor(loop)


def run(processor: ContinuousBatchProcessor, *arguments: Any) -> dict[str, Any]:
    """Step a processor to the end; return the last output of each request."""
    while processor.prepare_next_batch():
        processor._generation_step(*arguments)
        processor.update_batch()
    assert not processor.has_pending_requests()
    last: dict[str, Any] = {}
    while processor.output_queue.qsize():
        output = processor.output_queue.get_nowait()
        last[output.request_id] = output
    return last


@pytest.mark.share(2)
@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma2"])
@pytest.mark.parametrize("scheduler", [FIFOScheduler, PrefillFirstScheduler])
def test_tokens_of_a_hand_stepped_processor_are_those_of_generate(kind: str, scheduler: Any) -> None:
    model, processor, prompts = float32_model(kind), processor_of(kind, scheduler), random_prompts(6)
    for number, prompt in enumerate(prompts):
        eos = model.generation_config.eos_token_id
        processor.input_queue.put(RequestState(f"r{number}", prompt, max_new_tokens=8, eos_token_id=eos))
    outputs = run(processor, model)
    for number, prompt in enumerate(prompts):
        assert outputs[f"r{number}"].generated_tokens == generated(model, prompt, 8), f"prompt {number}"
        assert outputs[f"r{number}"].status is RequestStatus.FINISHED
    assert processor.cache.get_num_free_blocks() == 64 and processor.cache.check_integrity() == []
    assert processor.cache.key_cache[0].any(), "the cache's tensors are those of the runner"


@pytest.mark.parametrize("overlap", [False, True])
def test_a_processor_over_an_engine_loop(overlap: bool) -> None:
    processor = loop_processor(overlap=overlap)
    for name, prompt in (("a", [1, 2, 3]), ("b", [4] * 9)):
        processor.input_queue.put(RequestState(name, prompt, max_new_tokens=5, num_children=int(name == "b")))
    outputs = run(processor)
    expected = {"a": [1, 2, 3], "b": [4] * 9, "b__child#0": [4] * 9}
    assert {name: output.generated_tokens for name, output in outputs.items()} == {
        name: greedy_tokens(prompt, 5, FAKE) for name, prompt in expected.items()
    }
    assert processor.inspect(lambda loop: loop.check_integrity()) == []
    processor.close()


@pytest.mark.full
def test_a_closed_processor_fails_its_requests_and_starts_again_with_a_model() -> None:
    processor, prompt = processor_of("llama"), list(range(10, 30))
    for model in (float32_model("llama"), tiny_hf_model("llama", 1, torch.float32), float32_model("llama")):
        eos = model.generation_config.eos_token_id
        processor.input_queue.put(RequestState("a", prompt, max_new_tokens=6, eos_token_id=eos))
        assert run(processor, model)["a"].generated_tokens == generated(model, prompt, 6)
        processor.input_queue.put(RequestState("b", prompt, max_new_tokens=6))
        assert processor.prepare_next_batch()
        processor.close()
        assert "closed" in processor.output_queue.get_nowait().error and not processor.has_pending_requests()


def test_a_streamed_request_has_an_output_for_each_token_and_another_only_the_last() -> None:
    processor = loop_processor()
    for name in ("streamed", "whole"):
        state = RequestState(name, [1, 2, 3], streaming=name == "streamed", record_timestamps=True, max_new_tokens=3)
        processor.input_queue.put(state)
    lengths: dict[str, list[int]] = {"streamed": [], "whole": []}
    assert isinstance(processor.output_router, ResultQueue)
    while processor.prepare_next_batch():
        processor._generation_step()
        processor.update_batch()
        while processor.output_router.qsize():
            output = processor.output_router.get_nowait()
            lengths[output.request_id].append(len(output.generated_tokens))
            assert len(output.timestamps or []) == lengths[output.request_id][-1]
    assert lengths == {"streamed": [1, 2, 3], "whole": [3]}


def test_the_arguments_of_older_versions() -> None:
    cache, outputs = PagedAttentionCache(CacheConfig(num_blocks=8, block_size=4)), queue.Queue[Any]()
    inputs = queue.Queue[Any]()
    processor = ContinuousBatchProcessor(
        cache, None, None, inputs, outputs, threading.Event(), "cpu", torch.float32, FIFOScheduler(cache), True, False
    )
    inputs.put(RequestState("long", [1] * 31, max_new_tokens=20))
    assert not processor.prepare_next_batch()
    output = outputs.get_nowait()
    assert (output.request_id, output.status) == ("long", RequestStatus.FAILED)
    assert "prompt has 31 tokens and max_new_tokens is 20, the limit of their sum is 32" in output.error


@pytest.mark.parametrize(("bad", "error"), [
    ([1, 2, 99_999], "99999"),
    ([1] * 500, "limit"),
])  # fmt: skip
def test_a_bad_request_fails_alone(bad: list[int], error: str) -> None:
    model, processor = float32_model("llama"), processor_of("llama")
    processor.input_queue.put(RequestState("good", [5, 6, 7], max_new_tokens=6))
    processor.input_queue.put(RequestState("bad", bad, max_new_tokens=6))
    processor.input_queue.put(RequestState("odd", [5, 6], logit_processor_kwargs={"temperature": -1.0}))
    outputs = run(processor, model)
    assert outputs["good"].generated_tokens == generated(model, [5, 6, 7], 6)
    assert outputs["bad"].status is outputs["odd"].status is RequestStatus.FAILED and error in outputs["bad"].error
    assert processor.cache.get_num_free_blocks() == 64 and processor.cache.check_integrity() == []


@pytest.mark.parametrize("make", [loop_processor, lambda: processor_of("llama")])
def test_cancelled_requests_and_duplicates_have_a_last_output(make: Any) -> None:
    model, processor = float32_model("llama"), make()
    for name in ("a", "b", "a"):
        processor.input_queue.put(RequestState(name, [3, 4, 5], max_new_tokens=50 if name == "a" else 3))
    assert processor.prepare_next_batch() and processor.prepare_next_batch()
    processor._generation_step(model)
    processor.update_batch()
    duplicate = processor.output_queue.get_nowait()
    assert (duplicate.request_id, duplicate.status, duplicate.generated_tokens) == ("a", RequestStatus.FAILED, [])
    processor.cancel_queue.put("a")
    outputs = run(processor, model)
    assert (outputs["a"].status, len(outputs["a"].generated_tokens)) == (RequestStatus.CANCELLED, 1)
    assert (outputs["b"].status, len(outputs["b"].generated_tokens)) == (RequestStatus.FINISHED, 3)


@pytest.mark.parametrize("make", [loop_processor, lambda: processor_of("llama")])
@pytest.mark.parametrize("prepared", [False, True])
def test_fail_all_requests_ends_each_with_the_error(make: Any, prepared: bool) -> None:
    processor = make()
    for name in ("a", "b"):
        processor.input_queue.put(RequestState(name, [3, 4, 5]))
    if prepared:
        assert processor.prepare_next_batch()
    processor.input_queue.put(RequestState("c", [3, 4, 5]))
    processor.fail_all_requests(ValueError("the caller gave up"))
    outputs = run(processor, float32_model("llama"))
    assert {name: (output.status, output.error) for name, output in outputs.items()} == dict.fromkeys(
        "abc", (RequestStatus.FAILED, "the caller gave up")
    )
    assert processor.cache.get_num_free_blocks() == processor.cache.num_blocks


@pytest.mark.full
def test_the_parameters_of_the_generation_config_apply_and_its_seed_repeats_them() -> None:
    def sampled(seed: int) -> list[int]:
        config = float32_model("llama").config
        cache = PagedAttentionCache(config, {"num_blocks": 64, "block_size": 4}, "cpu", torch.float32)
        processor = ContinuousBatchProcessor(
            cache, config, {"do_sample": True, "temperature": 1.5}, {"seed": seed}, scheduler=FIFOScheduler(cache)
        )
        processor.input_queue.put(RequestState("a", [5, 6, 7], max_new_tokens=12))
        tokens: list[int] = run(processor, float32_model("llama"))["a"].generated_tokens
        return tokens

    assert sampled(3) == sampled(3) != sampled(4)


def test_a_step_without_a_model_and_wrong_parts_are_refused() -> None:
    processor = processor_of("llama")
    processor.input_queue.put(RequestState("a", [3, 4, 5], max_new_tokens=2))
    assert processor.prepare_next_batch()
    with pytest.raises(ConfigError, match="needs the model"):
        processor._generation_step()
    other = processor_of("llama")
    other.input_queue.put(RequestState("a", [3, 4, 5]))
    assert other.prepare_next_batch()
    with pytest.raises(ConfigError, match="make them equal"):
        other._generation_step(tiny_hf_model("mistral", dtype=torch.float32))
    assert run(processor, float32_model("llama"))["a"].status is RequestStatus.FINISHED
    cache = PagedAttentionCache(CacheConfig(num_blocks=8, block_size=4))
    for arguments, message in (
        ({}, "needs a PagedAttentionCache"), ({"cache": cache}, "needs a FIFOScheduler"),
        ({"cache": cache, "scheduler": FIFOScheduler(processor.cache)}, "the same cache"),
        ({"cache": cache, "streams": 1}, "no argument 'streams'"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            ContinuousBatchProcessor(**arguments)


def test_a_running_engine_is_shown_and_refuses_steps_by_hand() -> None:
    gate, outputs = StepGate(), list[Any]()
    client = start_client(FakeRunner(FAKE, hook=gate), max_running_requests=1)
    processor = ContinuousBatchProcessor.of_client(client)
    for name in ("a", "b"):
        client.submit(make_request(name, 5, 4), outputs.extend)
    assert gate.entered.wait(WAIT_SECONDS)
    gate.opened.set()
    for step in (processor.prepare_next_batch, processor._generation_step, processor.update_batch):
        with pytest.raises(RuntimeError, match="own thread runs the steps"):
            step()
    processor.fail_all_requests(ValueError("all of them"))
    assert not processor.has_pending_requests()
    assert processor.cache.get_num_free_blocks() == processor.cache.num_blocks == FAKE.num_blocks
    assert processor.cache.allocate_blocks(2, "mine") is not None
    assert client.cache_state()["allocated_blocks"] == 2 and client.check_integrity() == []
    processor.cache.free_blocks("mine")
    client.close()
    assert processor.cache.get_num_free_blocks() == FAKE.num_blocks and not processor.has_pending_requests()
    assert {each.request_id for each in outputs if each.is_final} == {"a", "b"}


class SizedQueue(queue.Queue[Any]):
    """A queue that is false while it is empty."""

    def __len__(self) -> int:
        return self.qsize()


def test_queues_that_are_empty_when_they_are_given_are_the_queues_of_the_processor() -> None:
    config, inputs, cancelled = float32_model("llama").config, SizedQueue(), SizedQueue()
    cache = PagedAttentionCache(config, {"num_blocks": 64, "block_size": 4}, "cpu", torch.float32)
    processor = ContinuousBatchProcessor(
        cache=cache, input_queue=inputs, cancel_queue=cancelled, scheduler=FIFOScheduler(cache, None, 4)
    )
    for name in ("a", "b"):
        inputs.put(RequestState(request_id=name, initial_tokens=[5, 6, 7], max_new_tokens=1))
    cancelled.put("b")
    assert processor.prepare_next_batch() and not inputs and not cancelled
    assert processor.output_router.get(timeout=WAIT_SECONDS).request_id == "b"
