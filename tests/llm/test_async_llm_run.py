"""AsyncLLM.run: several requests in one stream."""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from chairlift import AsyncLLM, SamplingParams
from chairlift.core.engine_output import EngineOutput, FinishReason
from chairlift.core.errors import DuplicateRequestId, EngineDead
from chairlift.engine.step_plan import StepPlan
from chairlift.llm.output_processor import OutputProcessor
from chairlift.llm.text_event import TextEvent
from chairlift.llm.text_service import TextService
from support_async_llm import LONG, SEEDED, SLOW_ENGINE, collect_events, ids, run, text
from support_services import fake_service, is_idle, text_of, tokens_of

# -- several requests in one stream ----------------------------------------------------------------------------------

Batches = list[list[tuple[int, TextEvent]]]


def prepare(
    service: TextService, *prompts: str, params: SamplingParams = LONG, **options: Any
) -> list[OutputProcessor]:
    return [service.prepare_completion(prompt, params, **options) for prompt in prompts]


async def collect_batches(llm: AsyncLLM, processors: Sequence[OutputProcessor]) -> Batches:
    return [batch async for batch in llm.run(processors)]


def by_request(batches: Batches) -> dict[int, list[TextEvent]]:
    by_index: dict[int, list[TextEvent]] = {}
    for batch in batches:
        for number, event in batch:
            by_index.setdefault(number, []).append(event)
    return by_index


async def wait_until_idle(service: TextService) -> None:
    """Wait until the engine is idle and its last outputs are in this event loop."""
    while not is_idle(service):
        await asyncio.sleep(0.005)
    await asyncio.sleep(0)


def num_finished(service: TextService, reason: str) -> int:
    return service.client.scheduler_state()["finished_by_reason"].get(reason, 0)


def test_several_requests_come_in_one_stream_each_whole_and_in_order() -> None:
    service = fake_service(max_running_requests=3)
    params = [SamplingParams(max_tokens=3 + 7 * number, seed=number) for number in range(6)]
    requests = [service.prepare_completion(f"prompt {number}", params[number]) for number in range(6)]
    batches = run(service, lambda llm: collect_batches(llm, requests))
    by_index = by_request(batches)
    for number in range(6):
        events = by_index[number]
        assert ids(events) == tokens_of(f"prompt {number}", params[number])
        assert text(events) == text_of(f"prompt {number}", params[number])
        assert [event.is_final for event in events] == [False] * (len(events) - 1) + [True]
        assert {event.request_id for event in events} == {requests[number].request.request_id}
    assert all(batches)


def test_a_reader_that_is_slow_finds_all_that_came_meanwhile_in_one_batch() -> None:
    service = fake_service()
    params = SamplingParams(max_tokens=24, seed=3, logprobs=1)

    async def scenario(llm: AsyncLLM) -> tuple[Batches, Batches]:
        fast = await collect_batches(llm, prepare(service, "a", "b", params=params))
        slow: Batches = []
        async with aclosing(llm.run(prepare(service, "a", "b", params=params))) as stream:
            async for batch in stream:
                slow.append(batch)
                await wait_until_idle(service)
        return fast, slow

    results = run(service, scenario)
    assert len(results[1]) <= 2
    fast, slow = map(by_request, results)
    for number, prompt in enumerate("ab"):
        assert ids(slow[number]) == ids(fast[number]) == tokens_of(prompt, params)
        assert text(slow[number]) == text(fast[number])
        last, other = slow[number][-1], fast[number][-1]
        assert last.is_final and (last.usage, last.finish_reason) == (other.usage, other.finish_reason)
        logprobs = [entry for event in slow[number] for entry in event.logprobs]
        assert logprobs == [entry for event in fast[number] for entry in event.logprobs] and len(logprobs) == 24


def test_where_only_the_end_is_waited_for_outputs_come_together() -> None:
    params = SamplingParams(max_tokens=300, seed=3, n=2)

    async def scenario(llm: AsyncLLM) -> tuple[Batches, Batches]:
        results: list[Batches] = []
        for at_once in (True, False):
            async with aclosing(llm.run(prepare(service, "a", "b", params=params), at_once=at_once)) as stream:
                results.append([batch async for batch in stream])
        return results[0], results[1]

    service = fake_service()
    fast, merged = run(service, scenario)
    assert len(merged) < 40, "the first, the final ones, and one each time enough tokens are unread"
    for number in range(2):
        quick_events, late_events = by_request(fast)[number], by_request(merged)[number]
        for index in range(2):
            results_of_choice = [
                [event for event in events if event.index == index] for events in (quick_events, late_events)
            ]
            assert ids(results_of_choice[0]) == ids(results_of_choice[1]) and len(ids(results_of_choice[1])) == 300
            assert text(results_of_choice[0]) == text(results_of_choice[1])
        assert late_events[-1].usage == quick_events[-1].usage


def test_a_stop_string_is_seen_at_once_also_where_only_the_end_is_waited_for() -> None:
    """Otherwise the engine would generate tokens that are dropped."""
    service = fake_service()
    results_of_choice = text_of("a", SamplingParams(max_tokens=300, seed=3))
    params = SamplingParams(max_tokens=300, seed=3, stop=[results_of_choice[40:44]])

    async def scenario(llm: AsyncLLM) -> Batches:
        async with aclosing(llm.run(prepare(service, "a", params=params), at_once=False)) as stream:
            return [batch async for batch in stream]

    last = by_request(run(service, scenario))[0][-1]
    assert last.finish_reason == "stop" and last.usage is not None and last.usage.completion_tokens <= 44


def test_nothing_to_run_is_over_at_once() -> None:
    assert run(fake_service(), lambda llm: collect_batches(llm, [])) == []


def test_a_stop_string_ends_one_of_them_and_the_others_go_on() -> None:
    service, params = fake_service(SLOW_ENGINE), SamplingParams(max_tokens=60, seed=3)
    stop = text_of("x", params)[10:13]
    requests = [service.prepare_completion("x", replace(params, stop=(stop,))), *prepare(service, "y", params=params)]
    by_index = by_request(run(service, lambda llm: collect_batches(llm, requests)))
    assert (by_index[0][-1].finish_reason, text(by_index[0])) == ("stop", text_of("x", params)[:10])
    assert ids(by_index[1]) == tokens_of("y", params)


@pytest.mark.parametrize("how_it_ends", ["aclose", "cancel", "raise"])
def test_leaving_early_aborts_all_that_are_open_and_no_other(how_it_ends: str) -> None:
    service = fake_service(SLOW_ENGINE)
    short = SamplingParams(max_tokens=1, seed=3)

    async def scenario(llm: AsyncLLM) -> None:
        other_stream = llm.generate("other", LONG)
        other_events = [await anext(other_stream)]
        ended = asyncio.Event()

        async def reader() -> None:
            requests = [*prepare(service, "a", "b"), *prepare(service, "short", params=short)]
            async with aclosing(llm.run(requests)) as stream:
                async for batch in stream:
                    if any(event.is_final for _, event in batch):
                        ended.set()
                        if how_it_ends == "aclose":
                            break
                        if how_it_ends == "raise":
                            raise RuntimeError("the reader failed")

        task = asyncio.create_task(reader())
        await ended.wait()
        if how_it_ends == "cancel":
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (num_finished(service, "abort"), num_finished(service, "length")) == (2, 1)
        other_events += [await anext(other_stream) for _ in range(5)]
        assert ids(other_events) == tokens_of("other", LONG)[: len(ids(other_events))]
        await other_stream.aclose()

    run(service, scenario)


def test_a_rejected_request_ends_the_others_and_not_the_one_with_its_id() -> None:
    service = fake_service(SLOW_ENGINE)
    params = SamplingParams(max_tokens=60, seed=3)

    async def scenario(llm: AsyncLLM) -> None:
        first = llm.generate("x", params, request_id="mine")
        events = [await anext(first)]
        requests = [*prepare(service, "a"), *prepare(service, "y", request_id="mine"), *prepare(service, "b")]
        with pytest.raises(DuplicateRequestId, match="mine"):
            await collect_batches(llm, requests)
        assert num_finished(service, "abort") == 1, "b was never queued"
        state = service.client.scheduler_state()
        assert (state["active_requests"], state["waiting_requests"]) == (1, 0)
        events += [event async for event in first]
        assert ids(events) == tokens_of("x", params)

    run(service, scenario)


def test_two_requests_with_one_id_cannot_run_together() -> None:
    service = fake_service(SLOW_ENGINE)

    async def scenario(llm: AsyncLLM) -> None:
        with pytest.raises(DuplicateRequestId):
            await collect_batches(llm, prepare(service, "a", "b", request_id="mine"))

    run(service, scenario)


def test_an_engine_that_dies_ends_each_of_them_with_its_error() -> None:
    are_submitted = threading.Event()

    def hook(plan: StepPlan, stage: str) -> None:
        if plan.step_id == 5:
            are_submitted.wait(20)
            raise EngineDead("the device is gone")

    service = fake_service(hook=hook)

    async def scenario() -> None:
        llm = AsyncLLM.from_service(service)
        batches: Batches = []
        async for batch in llm.run(prepare(service, "a", "b", "c")):
            batches.append(batch)
            are_submitted.set()
        by_index = by_request(batches)
        for number, prompt in enumerate("abc"):
            events = by_index[number]
            assert isinstance(events[-1].error, EngineDead) and events[-1].is_final
            assert sum(event.is_final for event in events) == 1
            assert ids(events) == tokens_of(prompt, LONG)[: len(ids(events))]
        with pytest.raises(EngineDead):
            await collect_batches(llm, prepare(service, "a", "b"))
        assert llm.abort_all() == 0, "a request that was not queued is not open"
        llm.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize("slow", [False, True])
def test_a_choice_that_has_ended_keeps_its_end_when_its_request_fails(
    slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if both outputs are in the inbox before the reader reads them."""
    service, sinks = fake_service(), []
    monkeypatch.setattr(
        service.client, "submit", lambda request, sink: sinks.append(sink)
    )  # the test sends the outputs itself
    processor = service.prepare_completion("x", SamplingParams(max_tokens=9, seed=3, n=2))
    name = processor.request.request_id

    async def scenario() -> list[TextEvent]:
        async def read_all() -> list[TextEvent]:
            return [
                event
                for batch in await collect_batches(AsyncLLM.from_service(service), [processor])
                for _, event in batch
            ]

        task = asyncio.create_task(read_all())
        await asyncio.sleep(0)
        for output in (
            EngineOutput(name, (65, 66), finish_reason=FinishReason.LENGTH),
            EngineOutput(name, (67,), choice_index=1),
            EngineOutput.failed(processor.request, EngineDead("the device is gone")),
        ):
            sinks[0]([output])
            for _ in range(0 if slow else 5):
                await asyncio.sleep(0)
        return await task

    events = asyncio.run(asyncio.wait_for(scenario(), 60))
    service.client.close()
    assert {event.index: event.finish_reason for event in events if event.finish_reason} == {0: "length", 1: "error"}
    assert [ids([event for event in events if event.index == index]) for index in (0, 1)] == [[65, 66], [67]]
    assert [event.is_final for event in events] == [False] * (len(events) - 1) + [True]


def test_everything_in_an_event_loop_can_be_aborted_at_once() -> None:
    service = fake_service(SLOW_ENGINE)
    other_loop_events: list[TextEvent] = []
    is_running = threading.Event()

    def in_another_loop() -> None:
        async def scenario() -> None:
            async for event in AsyncLLM.from_service(service).generate(
                "elsewhere", SamplingParams(max_tokens=80, seed=3)
            ):
                other_loop_events.append(event)
                is_running.set()

        asyncio.run(scenario())

    async def scenario(llm: AsyncLLM) -> None:
        assert llm.abort_all() == 0
        first, both = llm.generate("x", LONG), llm.run(prepare(service, "a", "b"))
        events, batches = [await anext(first)], [await anext(both)]
        assert await asyncio.to_thread(is_running.wait, 30)
        assert llm.abort_all() == 3
        events += [event async for event in first]
        batches += [batch async for batch in both]
        for each in (events, *by_request(batches).values()):
            assert each[-1].finish_reason == "abort" and each[-1].error is None and each[-1].is_final
        assert llm.abort_all() == 0
        assert ids(await collect_events(llm, "y")) == tokens_of("y", SEEDED)

    other = threading.Thread(target=in_another_loop)
    other.start()
    run(service, scenario)
    other.join(60)
    assert ids(other_loop_events) == tokens_of("elsewhere", SamplingParams(max_tokens=80, seed=3))
