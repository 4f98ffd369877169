"""AsyncLLM over a fake model: deltas, cancelling, many streams, event loops, failures and closing."""

import asyncio
import gc
import threading
import weakref
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from chairlift import AsyncLLM, SamplingParams
from chairlift.core.errors import DuplicateRequestId, EngineDead, InvalidRequest, NonFiniteLogits, TokenOutOfRange
from chairlift.core.request import EngineOutput, FinishReason
from chairlift.engine.step_plan import StepPlan
from chairlift.llm.async_llm import WAKEUPS_PER_ITERATION, _OutputDispatcher, _OutputInbox
from chairlift.llm.output_processor import OutputProcessor
from chairlift.llm.outputs import TextEvent
from chairlift.llm.text_service import ModelDefaults, TextService
from support_services import FAKE, AsciiTokenizer, Gate, fake_service, is_idle, text_of, tokens_of, wait_until

SEEDED = SamplingParams(max_tokens=24, seed=3)
LONG = SamplingParams(max_tokens=400, seed=3)
SLOW = replace(FAKE, seconds_per_step=0.005)


async def whole(llm: AsyncLLM, prompt: Any, params: SamplingParams | None = SEEDED, **options: Any) -> list[TextEvent]:
    return [event async for event in llm.generate(prompt, params, **options)]


def text(events: list[TextEvent]) -> str:
    return "".join(event.delta for event in events)


def ids(events: list[TextEvent]) -> list[int]:
    return [token for event in events for token in event.token_ids]


def run(service: TextService, story: Any) -> Any:
    """Run `story(llm)` in an event loop, and check afterwards that the engine holds nothing."""

    async def run_story() -> Any:
        async with AsyncLLM.from_service(service) as llm:
            results = await story(llm)
            while not is_idle(service):
                await asyncio.sleep(0.005)
            assert await llm.check_integrity() == []
            return results

    return asyncio.run(asyncio.wait_for(run_story(), 60))


def test_the_deltas_together_are_the_text_and_the_last_event_tells_all() -> None:
    events = run(fake_service(), lambda llm: whole(llm, "hello"))
    assert text(events) == text_of("hello", SEEDED)
    assert ids(events) == tokens_of("hello", SEEDED)
    assert [event.finish_reason for event in events[:-1]] == [None] * (len(events) - 1)
    last = events[-1]
    assert last.finish_reason == "length" and last.error is None and last.seed == 3
    assert last.usage is not None and last.timeline is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (5, 24)
    assert last.timeline.events[0].name == "queued"
    assert all(event.usage is None for event in events[:-1])


def test_ids_without_params_take_the_models_defaults() -> None:
    defaults = ModelDefaults(sampling={"temperature": 0.0}, max_tokens=5)
    events = run(fake_service(defaults=defaults), lambda llm: whole(llm, [1, 2, 3], None))
    assert ids(events) == tokens_of([1, 2, 3], SamplingParams(temperature=0, max_tokens=5))


def test_a_chat_goes_through_the_template() -> None:
    async def story(llm: AsyncLLM) -> list[TextEvent]:
        return [event async for event in llm.chat([{"role": "user", "content": "hello"}], SEEDED)]

    assert ids(run(fake_service(), story)) == tokens_of("user=hello;a=", SEEDED)


def test_logprobs_come_with_their_tokens() -> None:
    params = SamplingParams(max_tokens=9, seed=3, logprobs=0)
    events = run(fake_service(), lambda llm: whole(llm, "x", params))
    assert all([entry.token_id for entry in event.logprobs] == list(event.token_ids) for event in events)


def test_a_stop_string_ends_the_stream_and_the_request() -> None:
    stop = text_of("x", SEEDED)[10:13]
    service = fake_service(SLOW)

    async def story(llm: AsyncLLM) -> list[TextEvent]:
        results = await whole(llm, "x", replace(LONG, stop=(stop,)))
        assert (await llm.scheduler_state())["finished_by_reason"]["abort"] == 1
        return results

    events = run(service, story)
    assert text(events) == text_of("x", SEEDED)[:10]
    assert (events[-1].finish_reason, events[-1].stop_reason) == ("stop", stop)


def test_two_hundred_streams_at_once_do_not_mix() -> None:
    async def story(llm: AsyncLLM) -> list[list[TextEvent]]:
        params = [SamplingParams(max_tokens=1 + number % 20, seed=number) for number in range(200)]
        return await asyncio.gather(*(whole(llm, f"prompt {n}", params[n]) for n in range(200)))

    for number, events in enumerate(run(fake_service(max_running_requests=16), story)):
        assert ids(events) == tokens_of(f"prompt {number}", SamplingParams(max_tokens=1 + number % 20, seed=number))


@pytest.mark.parametrize("way", ["aclose", "break", "cancel", "raise"])
def test_leaving_early_aborts_within_a_step(way: str) -> None:
    """The state is requested right after the abort: the reply comes after the abort and at most the current step."""
    service = fake_service(SLOW)

    async def story(llm: AsyncLLM) -> int:
        first_event = asyncio.Event()

        async def reader() -> None:
            stream = llm.generate("x", LONG)
            if way == "break":
                async for _ in llm.generate("x", LONG):
                    first_event.set()
                    break
                return
            async with aclosing(stream):
                async for _ in stream:
                    first_event.set()
                    if way == "aclose":
                        break
                    if way == "raise":
                        raise RuntimeError("the reader fell")

        task = asyncio.create_task(reader())
        await first_event.wait()
        if way == "cancel":
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert is_idle(service)
        state = await llm.scheduler_state()
        assert state["finished_by_reason"]["abort"] == 1
        return state["steps"]

    assert run(service, story) < 400


def test_an_unread_stream_is_not_queued() -> None:
    async def story(llm: AsyncLLM) -> int:
        await llm.generate("x", LONG).aclose()
        return (await llm.scheduler_state())["steps"]

    assert run(fake_service(), story) == 0


def test_cancelling_one_stream_leaves_its_neighbours_alone() -> None:
    async def story(llm: AsyncLLM) -> list[int]:
        others = [asyncio.create_task(whole(llm, f"prompt {n}", SamplingParams(max_tokens=60, seed=n))) for n in (1, 2)]
        stream = llm.generate("gone", LONG)
        await anext(stream)
        await stream.aclose()
        return [ids(await task) for task in others]

    results = run(fake_service(SLOW), story)
    assert results == [tokens_of(f"prompt {n}", SamplingParams(max_tokens=60, seed=n)) for n in (1, 2)]


def test_invalid_requests_raise_at_the_call() -> None:
    async def story(llm: AsyncLLM) -> None:
        with pytest.raises(TokenOutOfRange):
            llm.generate([1, 999])
        with pytest.raises(InvalidRequest, match="request_id must have 1 to 256"):
            llm.generate("x", request_id="n" * 300)
        with pytest.raises(InvalidRequest, match="SamplingParams"):
            llm.generate("x", {"seed": 1})  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest):
            llm.chat([])

    run(fake_service(), story)


def test_a_request_id_is_free_again_when_its_request_has_ended() -> None:
    gate = Gate(after=3)

    async def story(llm: AsyncLLM) -> None:
        first = llm.generate("x", LONG, request_id="mine")
        event = await anext(first)
        assert event.request_id == "mine"
        with pytest.raises(DuplicateRequestId, match="mine"):
            await whole(llm, "y", request_id="mine")
        gate.opened.set()
        rest = [event async for event in first]
        assert rest[-1].finish_reason == "length"  # the duplicate did not disturb it
        assert ids([event, *rest]) == tokens_of("x", LONG)
        assert ids(await whole(llm, "y", request_id="mine")) == tokens_of("y", SEEDED)

    run(fake_service(hook=gate), story)


def test_a_failure_is_the_last_event() -> None:
    service = fake_service(replace(FAKE, nan=126))
    events = run(service, lambda llm: whole(llm, [126]))
    assert len(events) == 1 and events[0].finish_reason == "error"
    assert isinstance(events[0].error, NonFiniteLogits) and events[0].usage is not None


def test_text_that_cannot_be_made_ends_the_stream_with_its_error() -> None:
    broken = tokens_of("x", SEEDED)[5]
    events = run(fake_service(SLOW, tokenizer=AsciiTokenizer(broken)), lambda llm: whole(llm, "x", LONG))
    assert events[-1].error is not None and events[-1].error.code == "detokenize_failed"
    assert len(ids(events)) <= 6


def test_a_timeout_is_the_last_event() -> None:
    slow = replace(FAKE, seconds_per_step=0.02)
    events = run(fake_service(slow), lambda llm: whole(llm, "x", LONG, timeout=0.1))
    assert events[-1].error is not None and events[-1].error.code == "timeout"
    assert ids(events) == tokens_of("x", LONG)[: len(ids(events))]


def test_event_loops_in_two_threads_share_one_engine() -> None:
    service = fake_service()
    llm = AsyncLLM.from_service(service)
    results: dict[int, list[int]] = {}

    def generate_in_thread(number: int) -> None:
        async def story() -> None:
            for turn in range(5):
                results[number * 10 + turn] = ids(await whole(llm, f"loop {number} {turn}"))

        asyncio.run(story())

    threads = [threading.Thread(target=generate_in_thread, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {n * 10 + t: tokens_of(f"loop {n} {t}", SEEDED) for n in range(3) for t in range(5)}
    assert is_idle(service)
    llm.close()


def test_an_event_loop_that_went_away_does_not_hurt_the_engine() -> None:
    service = fake_service(SLOW)
    llm = AsyncLLM.from_service(service)
    loop = asyncio.new_event_loop()
    stream = llm.generate("x", LONG)
    loop.run_until_complete(anext(stream))
    loop.close()
    assert ids(asyncio.run(whole(llm, "y"))) == tokens_of("y", SEEDED)
    assert service.client.check_integrity() == []
    llm.close()


def test_closing_ends_open_streams_with_engine_dead_and_later_calls_too() -> None:
    gate = Gate(after=3)
    service = fake_service(hook=gate)

    async def story() -> None:
        llm = AsyncLLM.from_service(service)
        task = asyncio.create_task(whole(llm, "x", LONG))
        await asyncio.to_thread(gate.reached.wait, 30)
        closing = asyncio.create_task(asyncio.to_thread(llm.close))
        gate.opened.set()
        events = await task
        await closing
        assert isinstance(events[-1].error, EngineDead)
        with pytest.raises(EngineDead):
            await whole(llm, "x")

    asyncio.run(asyncio.wait_for(story(), 60))


def test_the_states_name_what_is_promised() -> None:
    service = fake_service()

    async def story(llm: AsyncLLM) -> None:
        assert {"waiting_requests", "active_requests", "waiting_order"} <= (await llm.scheduler_state()).keys()
        assert {"total_blocks", "free_blocks", "memory_utilization"} <= (await llm.cache_state()).keys()
        assert (await llm.load()).total_blocks == 128
        assert llm.defaults is service.defaults and llm.report == {}

    run(service, story)
    wait_until(lambda: not any(thread.name == "chairlift-engine" for thread in threading.enumerate()))


def test_a_warm_up_can_be_awaited_while_a_stream_goes_on() -> None:
    async def story(llm: AsyncLLM) -> None:
        stream = llm.generate("a b", SEEDED)
        texts = [(await anext(stream)).delta]
        assert await llm.warmup() >= 0
        texts += [event.delta async for event in stream]
        assert "".join(texts) == text_of("a b", SEEDED)

    run(fake_service(), story)


def test_an_event_loop_that_has_ended_is_forgotten() -> None:
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def story(llm: AsyncLLM) -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await whole(llm, "hello")

    service = fake_service()
    llm = AsyncLLM.from_service(service)
    for _ in range(3):
        asyncio.run(story(llm))
    gc.collect()
    assert [loop() for loop in loops] == [None] * 3
    llm.close()


# -- several requests in one stream ----------------------------------------------------------------------------------

Batches = list[list[tuple[int, TextEvent]]]


def prepare(
    service: TextService, *prompts: str, params: SamplingParams = LONG, **options: Any
) -> list[OutputProcessor]:
    return [service.prepare_completion(prompt, params, **options) for prompt in prompts]


async def batches_of(llm: AsyncLLM, assemblers: Sequence[OutputProcessor]) -> Batches:
    return [batch async for batch in llm.run(assemblers)]


def by_number(batches: Batches) -> dict[int, list[TextEvent]]:
    by_index: dict[int, list[TextEvent]] = {}
    for batch in batches:
        for number, event in batch:
            by_index.setdefault(number, []).append(event)
    return by_index


async def settled(service: TextService) -> None:
    """Wait until the engine is idle and its last outputs are in this event loop."""
    while not is_idle(service):
        await asyncio.sleep(0.005)
    await asyncio.sleep(0)


def counted(service: TextService, reason: str) -> int:
    return service.client.scheduler_state()["finished_by_reason"].get(reason, 0)


def test_several_requests_come_in_one_stream_each_whole_and_in_order() -> None:
    service = fake_service(max_running_requests=3)
    params = [SamplingParams(max_tokens=3 + 7 * number, seed=number) for number in range(6)]
    requests = [service.prepare_completion(f"prompt {number}", params[number]) for number in range(6)]
    batches = run(service, lambda llm: batches_of(llm, requests))
    by_index = by_number(batches)
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

    async def story(llm: AsyncLLM) -> tuple[Batches, Batches]:
        quick = await batches_of(llm, prepare(service, "a", "b", params=params))
        slow: Batches = []
        async with aclosing(llm.run(prepare(service, "a", "b", params=params))) as stream:
            async for batch in stream:
                slow.append(batch)
                await settled(service)
        return quick, slow

    results = run(service, story)
    assert len(results[1]) <= 2
    quick, slow = map(by_number, results)
    for number, prompt in enumerate("ab"):
        assert ids(slow[number]) == ids(quick[number]) == tokens_of(prompt, params)
        assert text(slow[number]) == text(quick[number])
        last, other = slow[number][-1], quick[number][-1]
        assert last.is_final and (last.usage, last.finish_reason) == (other.usage, other.finish_reason)
        logprobs = [entry for event in slow[number] for entry in event.logprobs]
        assert logprobs == [entry for event in quick[number] for entry in event.logprobs] and len(logprobs) == 24


def test_where_only_the_end_is_waited_for_news_come_together() -> None:
    params = SamplingParams(max_tokens=300, seed=3, n=2)

    async def story(llm: AsyncLLM) -> tuple[Batches, Batches]:
        results: list[Batches] = []
        for at_once in (True, False):
            async with aclosing(llm.run(prepare(service, "a", "b", params=params), at_once=at_once)) as stream:
                results.append([batch async for batch in stream])
        return results[0], results[1]

    service = fake_service()
    quick, late = run(service, story)
    assert len(late) < 40, "the first, the ends, and each time that much is unread"
    for number in range(2):
        quick_events, late_events = by_number(quick)[number], by_number(late)[number]
        for index in range(2):
            results_of_choice = [
                [event for event in events if event.index == index] for events in (quick_events, late_events)
            ]
            assert ids(results_of_choice[0]) == ids(results_of_choice[1]) and len(ids(results_of_choice[1])) == 300
            assert text(results_of_choice[0]) == text(results_of_choice[1])
        assert late_events[-1].usage == quick_events[-1].usage


def test_a_stop_string_is_seen_at_once_also_where_only_the_end_is_waited_for() -> None:
    """Else the engine would work on for nothing."""
    service = fake_service()
    results_of_choice = text_of("a", SamplingParams(max_tokens=300, seed=3))
    params = SamplingParams(max_tokens=300, seed=3, stop=[results_of_choice[40:44]])

    async def story(llm: AsyncLLM) -> Batches:
        async with aclosing(llm.run(prepare(service, "a", params=params), at_once=False)) as stream:
            return [batch async for batch in stream]

    last = by_number(run(service, story))[0][-1]
    assert last.finish_reason == "stop" and last.usage is not None and last.usage.completion_tokens <= 44


def test_nothing_to_run_is_over_at_once() -> None:
    assert run(fake_service(), lambda llm: batches_of(llm, [])) == []


def test_a_stop_string_ends_one_of_them_and_the_others_go_on() -> None:
    service, params = fake_service(SLOW), SamplingParams(max_tokens=60, seed=3)
    stop = text_of("x", params)[10:13]
    requests = [service.prepare_completion("x", replace(params, stop=(stop,))), *prepare(service, "y", params=params)]
    by_index = by_number(run(service, lambda llm: batches_of(llm, requests)))
    assert (by_index[0][-1].finish_reason, text(by_index[0])) == ("stop", text_of("x", params)[:10])
    assert ids(by_index[1]) == tokens_of("y", params)


@pytest.mark.parametrize("way", ["aclose", "cancel", "raise"])
def test_leaving_early_aborts_all_that_are_open_and_no_other(way: str) -> None:
    service = fake_service(SLOW)
    short = SamplingParams(max_tokens=1, seed=3)

    async def story(llm: AsyncLLM) -> None:
        stranger = llm.generate("stranger", LONG)
        begun = [await anext(stranger)]
        ended = asyncio.Event()

        async def reader() -> None:
            requests = [*prepare(service, "a", "b"), *prepare(service, "short", params=short)]
            async with aclosing(llm.run(requests)) as stream:
                async for batch in stream:
                    if any(event.is_final for _, event in batch):
                        ended.set()
                        if way == "aclose":
                            break
                        if way == "raise":
                            raise RuntimeError("the reader fell")

        task = asyncio.create_task(reader())
        await ended.wait()
        if way == "cancel":
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (counted(service, "abort"), counted(service, "length")) == (2, 1)
        begun += [await anext(stranger) for _ in range(5)]
        assert ids(begun) == tokens_of("stranger", LONG)[: len(ids(begun))]
        await stranger.aclose()

    run(service, story)


def test_one_that_is_refused_ends_the_others_and_leaves_its_namesake_alone() -> None:
    service = fake_service(SLOW)
    params = SamplingParams(max_tokens=60, seed=3)

    async def story(llm: AsyncLLM) -> None:
        first = llm.generate("x", params, request_id="mine")
        events = [await anext(first)]
        requests = [*prepare(service, "a"), *prepare(service, "y", request_id="mine"), *prepare(service, "b")]
        with pytest.raises(DuplicateRequestId, match="mine"):
            await batches_of(llm, requests)
        assert counted(service, "abort") == 1, "b was never queued"
        state = service.client.scheduler_state()
        assert (state["active_requests"], state["waiting_requests"]) == (1, 0)
        events += [event async for event in first]
        assert ids(events) == tokens_of("x", params)

    run(service, story)


def test_two_of_the_same_name_cannot_be_run_together() -> None:
    service = fake_service(SLOW)

    async def story(llm: AsyncLLM) -> None:
        with pytest.raises(DuplicateRequestId):
            await batches_of(llm, prepare(service, "a", "b", request_id="mine"))

    run(service, story)


def test_an_engine_that_dies_ends_each_of_them_with_its_error() -> None:
    def hook(plan: StepPlan, stage: str) -> None:
        if plan.step_id == 5:
            raise EngineDead("the device is gone")

    service = fake_service(hook=hook)

    async def story() -> None:
        llm = AsyncLLM.from_service(service)
        by_index = by_number(await batches_of(llm, prepare(service, "a", "b", "c")))
        for number, prompt in enumerate("abc"):
            events = by_index[number]
            assert isinstance(events[-1].error, EngineDead) and events[-1].is_final
            assert sum(event.is_final for event in events) == 1
            assert ids(events) == tokens_of(prompt, LONG)[: len(ids(events))]
        with pytest.raises(EngineDead):
            await batches_of(llm, prepare(service, "a", "b"))
        assert llm.abort_all() == 0, "what was not queued is not open"
        llm.close()

    asyncio.run(asyncio.wait_for(story(), 60))


@pytest.mark.parametrize("slow", [False, True])
def test_a_choice_that_has_ended_keeps_its_end_when_its_request_fails(
    slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the reader is so late that both are in its inbox."""
    service, sinks = fake_service(), []
    monkeypatch.setattr(service.client, "submit", lambda request, sink: sinks.append(sink))  # this test is the engine
    assembler = service.prepare_completion("x", SamplingParams(max_tokens=9, seed=3, n=2))
    name = assembler.request.request_id

    async def story() -> list[TextEvent]:
        async def read() -> list[TextEvent]:
            return [
                event for batch in await batches_of(AsyncLLM.from_service(service), [assembler]) for _, event in batch
            ]

        reading = asyncio.create_task(read())
        await asyncio.sleep(0)
        for output in (
            EngineOutput(name, (65, 66), finish_reason=FinishReason.LENGTH),
            EngineOutput(name, (67,), choice_index=1),
            EngineOutput.failed(assembler.request, EngineDead("the device is gone")),
        ):
            sinks[0]([output])
            for _ in range(0 if slow else 5):
                await asyncio.sleep(0)
        return await reading

    events = asyncio.run(asyncio.wait_for(story(), 60))
    service.client.close()
    assert {event.index: event.finish_reason for event in events if event.finish_reason} == {0: "length", 1: "error"}
    assert [ids([event for event in events if event.index == index]) for index in (0, 1)] == [[65, 66], [67]]
    assert [event.is_final for event in events] == [False] * (len(events) - 1) + [True]


def test_everything_in_an_event_loop_can_be_aborted_at_once() -> None:
    service = fake_service(SLOW)
    elsewhere: list[TextEvent] = []
    is_running = threading.Event()

    def in_another_loop() -> None:
        async def story() -> None:
            async for event in AsyncLLM.from_service(service).generate(
                "elsewhere", SamplingParams(max_tokens=80, seed=3)
            ):
                elsewhere.append(event)
                is_running.set()

        asyncio.run(story())

    async def story(llm: AsyncLLM) -> None:
        assert llm.abort_all() == 0
        first, both = llm.generate("x", LONG), llm.run(prepare(service, "a", "b"))
        events, batches = [await anext(first)], [await anext(both)]
        assert await asyncio.to_thread(is_running.wait, 30)
        assert llm.abort_all() == 3
        events += [event async for event in first]
        batches += [batch async for batch in both]
        for each in (events, *by_number(batches).values()):
            assert each[-1].finish_reason == "abort" and each[-1].error is None and each[-1].is_final
        assert llm.abort_all() == 0
        assert ids(await whole(llm, "y")) == tokens_of("y", SEEDED)

    other = threading.Thread(target=in_another_loop)
    other.start()
    run(service, story)
    other.join(60)
    assert ids(elsewhere) == tokens_of("elsewhere", SamplingParams(max_tokens=80, seed=3))


def test_readers_are_woken_in_batches_and_none_is_forgotten() -> None:
    """Between two batches the event loop runs other tasks, so a step with many readers blocks no task."""
    count = 4 * WAKEUPS_PER_ITERATION + 3
    turns: list[int] = []

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        dispatcher = _OutputDispatcher(loop, lambda: 0.0)
        inboxes = [_OutputInbox(loop) for _ in range(count)]
        for number, inbox in enumerate(inboxes):
            dispatcher.open(str(number), inbox)
        turn = 0

        async def read(inbox: _OutputInbox) -> int:
            (output,) = await inbox.take(at_once=True)
            turns.append(turn)
            return int(output.request_id)

        readers = [asyncio.create_task(read(inbox)) for inbox in inboxes]
        await asyncio.sleep(0)
        dispatcher.sink([EngineOutput(str(number), (7,)) for number in range(count)])
        while not all(reader.done() for reader in readers):
            await asyncio.sleep(0)
            turn += 1
            assert turn < 100
        return [reader.result() for reader in readers]

    assert asyncio.run(main()) == list(range(count))
    assert len(set(turns)) == 5 and max(Counter(turns).values()) == WAKEUPS_PER_ITERATION


def test_a_cancelled_reader_does_not_block_the_others() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        dispatcher = _OutputDispatcher(loop, lambda: 0.0)
        inboxes = [_OutputInbox(loop) for _ in range(3 * WAKEUPS_PER_ITERATION)]
        for number, inbox in enumerate(inboxes):
            dispatcher.open(str(number), inbox)
        readers = [asyncio.create_task(inbox.take(at_once=True)) for inbox in inboxes]
        await asyncio.sleep(0)
        for number in range(0, len(inboxes), 2):
            readers[number].cancel()
        dispatcher.sink([EngineOutput(str(number), (7,)) for number in range(len(inboxes))])
        results = await asyncio.wait_for(asyncio.gather(*readers, return_exceptions=True), 20)
        assert all(isinstance(each, list) for each in results[1::2])
        assert not dispatcher._readers_to_wake and not dispatcher._is_waking

    asyncio.run(main())


def test_deliveries_are_spaced_and_outputs_in_between_are_merged() -> None:
    async def main() -> None:
        loop, prepare = (
            asyncio.get_running_loop(),
            [0.2, 0.0, 0.0],
        )  # one for each time: it does not look too early, either
        dispatcher, inbox = _OutputDispatcher(loop, lambda: prepare.pop(0)), _OutputInbox(loop)
        dispatcher.open("a", inbox)

        async def next_output() -> tuple[tuple[int, ...], float]:
            (output,) = await inbox.take(at_once=True)
            return output.token_ids, loop.time()

        dispatcher.sink([EngineOutput("a", (1,))])
        first, began = await next_output()
        for token in (2, 3, 4):
            dispatcher.sink([EngineOutput("a", (token,))])
            await asyncio.sleep(0.01)
        second, later = await next_output()
        dispatcher.sink([EngineOutput("a", (5,))])
        third, _ = await next_output()
        assert (first, second, third) == ((1,), (2, 3, 4), (5,))
        assert later - began >= 0.19 and prepare == []

    asyncio.run(asyncio.wait_for(main(), 20))
