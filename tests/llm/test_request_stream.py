"""RequestStream: leaving a stream aborts its request, also when a variable holds it; what its outputs have."""

import asyncio
import gc
from dataclasses import replace
from typing import Any

import pytest

from chairlift import AsyncLLM, RequestOutputKind, SamplingParams
from chairlift.core.errors import InvalidRequest
from chairlift.llm.request_stream import RequestStream
from chairlift.llm.text_event import StreamOutput
from support_async_llm import LONG, SEEDED, SLOW_ENGINE, run
from support_services import fake_service, is_idle, text_of, tokens_of
from support_shares import for_each


async def leave_by_break(stream: RequestStream) -> None:
    async for _ in stream:
        break


async def leave_by_exception(stream: RequestStream) -> None:
    try:
        async for _ in stream:
            raise LookupError
    except LookupError:
        pass


async def leave_by_return(stream: RequestStream) -> StreamOutput | None:
    async for output in stream:
        return output
    return None


async def leave_by_timeout(stream: RequestStream) -> None:
    await anext(stream)
    try:
        async with asyncio.timeout(0.02):
            async for _ in stream:
                pass
    except TimeoutError:
        pass


async def leave_by_async_with(stream: RequestStream) -> None:
    async with stream:
        await anext(stream)


async def leave_by_aclose(stream: RequestStream) -> None:
    await anext(stream)
    await stream.aclose()


WAYS = [leave_by_break, leave_by_exception, leave_by_return, leave_by_timeout, leave_by_async_with, leave_by_aclose]


@for_each("leave", WAYS)
def test_leaving_a_stream_that_a_variable_holds_aborts_and_frees_the_blocks(leave: Any) -> None:
    """No garbage collection, no end of the event loop: the request ends while `stream` still exists."""
    service = fake_service(SLOW_ENGINE)

    async def scenario(llm: AsyncLLM) -> int:
        stream = llm.generate("x", LONG)
        gc.disable()
        try:
            await leave(stream)
            await asyncio.sleep(0)  # a finalizer aborts in the next iteration of the event loop
            assert (await llm.cache_state())["allocated_blocks"] == 0
        finally:
            gc.enable()
        state = await llm.scheduler_state()
        assert state["finished_by_reason"]["abort"] == 1 and is_idle(service)
        assert [output async for output in stream] == []
        return state["steps"]

    assert run(service, scenario) < 400


def test_reading_on_after_a_single_output_is_not_leaving() -> None:
    async def scenario(llm: AsyncLLM) -> list[StreamOutput]:
        stream = llm.generate("x", SEEDED)
        return [await anext(stream), await anext(stream), *[output async for output in stream]]

    outputs = run(fake_service(SLOW_ENGINE), scenario)
    assert [token for output in outputs for token in output.token_ids] == tokens_of("x", SEEDED)
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]


def test_a_stream_can_be_made_before_an_event_loop_runs() -> None:
    llm = AsyncLLM.from_service(fake_service())
    stream = llm.generate("x", SEEDED)

    async def read() -> list[int]:
        return [token async for output in stream for token in output.token_ids]

    assert asyncio.run(read()) == tokens_of("x", SEEDED)
    llm.close()


def read_all(params: SamplingParams) -> list[StreamOutput]:
    async def scenario(llm: AsyncLLM) -> list[StreamOutput]:
        return [output async for output in llm.generate(prompt="hello", sampling_params=params, request_id="r")]

    outputs: list[StreamOutput] = run(fake_service(SLOW_ENGINE), scenario)
    return outputs


def test_each_output_holds_everything_so_far() -> None:
    outputs = read_all(replace(SEEDED, logprobs=0))
    expected = tokens_of("hello", SEEDED)
    sizes = [len(output.outputs[0].token_ids) for output in outputs]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1] == 24
    for output, size in zip(outputs, sizes, strict=True):
        (choice,) = output.outputs
        assert (choice.token_ids, choice.text) == (expected[:size], bytes(expected[:size]).decode())
        assert choice.cumulative_logprob == -size and len(choice.logprobs or ()) == size
        assert (output.prompt, output.prompt_token_ids) == ("hello", list(b"hello"))
    assert outputs[-1].outputs[0].finished() and outputs[-1].outputs[0].finish_reason == "length"
    assert [output.num_cached_tokens for output in outputs] == [None] * (len(outputs) - 1) + [0]


def test_a_delta_holds_what_is_new() -> None:
    outputs = read_all(replace(SEEDED, output_kind=RequestOutputKind.DELTA))
    assert "".join(output.outputs[0].text for output in outputs) == text_of("hello", SEEDED)
    assert [token for output in outputs for token in output.outputs[0].token_ids] == tokens_of("hello", SEEDED)
    assert len(outputs) > 1 and all(output.outputs[0].logprobs is None for output in outputs)


def test_a_final_output_alone_holds_every_choice() -> None:
    params = replace(SEEDED, n=3)
    (output,) = read_all(replace(params, output_kind=RequestOutputKind.FINAL_ONLY))
    assert output.finished and [choice.index for choice in output.outputs] == [0, 1, 2]
    assert output.outputs[0].token_ids == tokens_of("hello", SEEDED)
    assert all(len(choice.token_ids) == 24 for choice in output.outputs)


def test_without_detokenizing_outputs_have_no_text() -> None:
    outputs = read_all(replace(SEEDED, detokenize=False, logprobs=0))
    assert outputs[-1].outputs[0].text == "" and outputs[-1].outputs[0].token_ids == tokens_of("hello", SEEDED)
    assert outputs[-1].outputs[0].logprobs is not None
    assert next(iter(outputs[-1].outputs[0].logprobs[0].values())).decoded_token is None


def test_an_invalid_request_raises_at_the_call() -> None:
    llm = AsyncLLM.from_service(fake_service())
    with pytest.raises(InvalidRequest, match="sampling_params must be SamplingParams, got dict"):
        llm.generate("x", {"temperature": 0})  # type: ignore[arg-type]
    llm.close()
