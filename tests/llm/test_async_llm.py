"""AsyncLLM on a fake model: deltas, cancelling, many streams, event loops, failures and closing."""

import asyncio
import gc
import threading
import weakref
from contextlib import aclosing
from dataclasses import replace

import pytest

from chairlift import AsyncLLM, SamplingParams
from chairlift.core.errors import DuplicateRequestId, EngineDead, InvalidRequest, NonFiniteLogits, TokenOutOfRange
from chairlift.engine.config import SpeculationConfig
from chairlift.llm.model_defaults import ModelDefaults
from chairlift.llm.text_event import TextEvent
from support_async_llm import LONG, SEEDED, SLOW_ENGINE, collect_events, ids, run, text
from support_process import engine_threads
from support_services import FAKE, AsciiTokenizer, Gate, fake_service, is_idle, text_of, tokens_of, wait_until


def test_the_deltas_together_are_the_text_and_the_last_event_has_the_totals() -> None:
    events = run(fake_service(), lambda llm: collect_events(llm, "hello"))
    assert text(events) == text_of("hello", SEEDED)
    assert ids(events) == tokens_of("hello", SEEDED)
    assert [event.finish_reason for event in events[:-1]] == [None] * (len(events) - 1)
    last = events[-1]
    assert last.finish_reason == "length" and last.error is None and last.seed == 3
    assert last.usage is not None and last.timeline is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (5, 24)
    assert last.timeline.events[0].name == "queued"
    assert all(event.usage is None for event in events[:-1])


def test_a_prediction_changes_no_output() -> None:
    async def scenario(llm: AsyncLLM) -> list[list[TextEvent]]:
        expected = text_of("hello", SEEDED)
        chat = llm.chat([{"role": "user", "content": "hello"}], SEEDED, prediction=text_of("user=hello;a=", SEEDED))
        return [
            [event async for event in llm.generate("hello", SEEDED, prediction=expected)],
            [event async for event in chat],
        ]

    speculation = SpeculationConfig(method="prediction")
    generated, chat = run(fake_service(speculation=speculation), scenario)
    assert text(generated) == text_of("hello", SEEDED) and text(chat) == text_of("user=hello;a=", SEEDED)
    for usage in (generated[-1].usage, chat[-1].usage):
        assert usage is not None and usage.accepted_prediction_tokens > 15


def test_ids_without_params_take_the_models_defaults() -> None:
    defaults = ModelDefaults(sampling={"temperature": 0.0}, max_tokens=5)
    events = run(fake_service(defaults=defaults), lambda llm: collect_events(llm, [1, 2, 3], None))
    assert ids(events) == tokens_of([1, 2, 3], SamplingParams(temperature=0, max_tokens=5))


def test_a_chat_goes_through_the_template() -> None:
    async def scenario(llm: AsyncLLM) -> list[TextEvent]:
        return [event async for event in llm.chat([{"role": "user", "content": "hello"}], SEEDED)]

    assert ids(run(fake_service(), scenario)) == tokens_of("user=hello;a=", SEEDED)


def test_logprobs_come_with_their_tokens() -> None:
    params = SamplingParams(max_tokens=9, seed=3, logprobs=0)
    events = run(fake_service(), lambda llm: collect_events(llm, "x", params))
    assert all([entry.token_id for entry in event.logprobs] == list(event.token_ids) for event in events)


def test_a_stop_string_ends_the_stream_and_the_request() -> None:
    stop = text_of("x", SEEDED)[10:13]
    service = fake_service(SLOW_ENGINE)

    async def scenario(llm: AsyncLLM) -> list[TextEvent]:
        results = await collect_events(llm, "x", replace(LONG, stop=(stop,)))
        assert (await llm.scheduler_state())["finished_by_reason"]["abort"] == 1
        return results

    events = run(service, scenario)
    assert text(events) == text_of("x", SEEDED)[:10]
    assert (events[-1].finish_reason, events[-1].stop_reason) == ("stop", stop)


def test_two_hundred_streams_at_once_do_not_mix() -> None:
    async def scenario(llm: AsyncLLM) -> list[list[TextEvent]]:
        params = [SamplingParams(max_tokens=1 + number % 20, seed=number) for number in range(200)]
        return await asyncio.gather(*(collect_events(llm, f"prompt {n}", params[n]) for n in range(200)))

    for number, events in enumerate(run(fake_service(max_running_requests=16), scenario)):
        assert ids(events) == tokens_of(f"prompt {number}", SamplingParams(max_tokens=1 + number % 20, seed=number))


@pytest.mark.parametrize("how_it_ends", ["aclose", "break", "cancel", "raise"])
def test_leaving_early_aborts_within_a_step(how_it_ends: str) -> None:
    """The state is requested right after the abort: the reply comes after the abort and at most the current step."""
    service = fake_service(SLOW_ENGINE)

    async def scenario(llm: AsyncLLM) -> int:
        first_event = asyncio.Event()

        async def reader() -> None:
            stream = llm.generate("x", LONG)
            if how_it_ends == "break":
                async for _ in llm.generate("x", LONG):
                    first_event.set()
                    break
                return
            async with aclosing(stream):
                async for _ in stream:
                    first_event.set()
                    if how_it_ends == "aclose":
                        break
                    if how_it_ends == "raise":
                        raise RuntimeError("the reader failed")

        task = asyncio.create_task(reader())
        await first_event.wait()
        if how_it_ends == "cancel":
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert is_idle(service)
        state = await llm.scheduler_state()
        assert state["finished_by_reason"]["abort"] == 1
        return state["steps"]

    assert run(service, scenario) < 400


def test_an_unread_stream_is_not_queued() -> None:
    async def scenario(llm: AsyncLLM) -> int:
        await llm.generate("x", LONG).aclose()
        return (await llm.scheduler_state())["steps"]

    assert run(fake_service(), scenario) == 0


def test_cancelling_one_stream_leaves_its_neighbours_alone() -> None:
    async def scenario(llm: AsyncLLM) -> list[int]:
        other_tasks = [
            asyncio.create_task(collect_events(llm, f"prompt {n}", SamplingParams(max_tokens=60, seed=n)))
            for n in (1, 2)
        ]
        stream = llm.generate("gone", LONG)
        await anext(stream)
        await stream.aclose()
        return [ids(await task) for task in other_tasks]

    results = run(fake_service(SLOW_ENGINE), scenario)
    assert results == [tokens_of(f"prompt {n}", SamplingParams(max_tokens=60, seed=n)) for n in (1, 2)]


def test_invalid_requests_raise_at_the_call() -> None:
    async def scenario(llm: AsyncLLM) -> None:
        with pytest.raises(TokenOutOfRange):
            llm.generate([1, 999])
        with pytest.raises(InvalidRequest, match="request_id must have 1 to 256"):
            llm.generate("x", request_id="n" * 300)
        with pytest.raises(InvalidRequest, match="SamplingParams"):
            llm.generate("x", {"seed": 1})  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest):
            llm.chat([])

    run(fake_service(), scenario)


def test_a_request_id_is_free_again_when_its_request_has_ended() -> None:
    gate = Gate(after=3)

    async def scenario(llm: AsyncLLM) -> None:
        first = llm.generate("x", LONG, request_id="mine")
        event = await anext(first)
        assert event.request_id == "mine"
        with pytest.raises(DuplicateRequestId, match="mine"):
            await collect_events(llm, "y", request_id="mine")
        gate.opened.set()
        rest = [event async for event in first]
        assert rest[-1].finish_reason == "length"  # the duplicate did not change it
        assert ids([event, *rest]) == tokens_of("x", LONG)
        assert ids(await collect_events(llm, "y", request_id="mine")) == tokens_of("y", SEEDED)

    run(fake_service(hook=gate), scenario)


def test_a_failure_is_the_last_event() -> None:
    service = fake_service(replace(FAKE, nan=126))
    events = run(service, lambda llm: collect_events(llm, [126]))
    assert len(events) == 1 and events[0].finish_reason == "error"
    assert isinstance(events[0].error, NonFiniteLogits) and events[0].usage is not None


def test_text_that_cannot_be_made_ends_the_stream_with_its_error() -> None:
    broken = tokens_of("x", SEEDED)[5]
    events = run(
        fake_service(SLOW_ENGINE, tokenizer=AsciiTokenizer(broken)), lambda llm: collect_events(llm, "x", LONG)
    )
    assert events[-1].error is not None and events[-1].error.code == "detokenize_failed"
    assert len(ids(events)) <= 6


def test_a_timeout_is_the_last_event() -> None:
    slow_engine = replace(FAKE, seconds_per_step=0.02)
    events = run(fake_service(slow_engine), lambda llm: collect_events(llm, "x", LONG, timeout=0.1))
    assert events[-1].error is not None and events[-1].error.code == "timeout"
    assert ids(events) == tokens_of("x", LONG)[: len(ids(events))]


def test_event_loops_in_two_threads_share_one_engine() -> None:
    service = fake_service()
    llm = AsyncLLM.from_service(service)
    results: dict[int, list[int]] = {}

    def generate_in_thread(number: int) -> None:
        async def scenario() -> None:
            for iteration in range(5):
                results[number * 10 + iteration] = ids(await collect_events(llm, f"loop {number} {iteration}"))

        asyncio.run(scenario())

    threads = [threading.Thread(target=generate_in_thread, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {n * 10 + t: tokens_of(f"loop {n} {t}", SEEDED) for n in range(3) for t in range(5)}
    assert is_idle(service)
    llm.close()


def test_an_event_loop_that_went_away_does_not_hurt_the_engine() -> None:
    service = fake_service(SLOW_ENGINE)
    llm = AsyncLLM.from_service(service)
    loop = asyncio.new_event_loop()
    stream = llm.generate("x", LONG)
    loop.run_until_complete(anext(stream))
    loop.close()
    assert ids(asyncio.run(collect_events(llm, "y"))) == tokens_of("y", SEEDED)
    assert service.client.check_integrity() == []
    llm.close()


def test_closing_ends_open_streams_with_engine_dead_and_later_calls_too() -> None:
    gate = Gate(after=3)
    service = fake_service(hook=gate)

    async def scenario() -> None:
        llm = AsyncLLM.from_service(service)
        task = asyncio.create_task(collect_events(llm, "x", LONG))
        await asyncio.to_thread(gate.reached.wait, 30)
        closing = asyncio.create_task(asyncio.to_thread(llm.close))
        gate.opened.set()
        events = await task
        await closing
        assert isinstance(events[-1].error, EngineDead)
        with pytest.raises(EngineDead):
            await collect_events(llm, "x")

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_the_states_have_the_documented_keys() -> None:
    before = engine_threads()
    service = fake_service()

    async def scenario(llm: AsyncLLM) -> None:
        assert {"waiting_requests", "active_requests", "waiting_order"} <= (await llm.scheduler_state()).keys()
        assert {"total_blocks", "free_blocks", "memory_utilization"} <= (await llm.cache_state()).keys()
        assert (await llm.load()).total_blocks == 128
        assert llm.defaults is service.defaults and [*llm.startup_report] == ["speculative decoding"]

    run(service, scenario)
    wait_until(lambda: engine_threads() <= before)


def test_the_old_name_of_the_startup_report_warns() -> None:
    service = fake_service()
    info = replace(service.client.info, startup_report=(("num_blocks", "128"),))
    service.client.loop.info = info  # type: ignore[attr-defined]

    async def scenario(llm: AsyncLLM) -> None:
        with pytest.warns(DeprecationWarning, match="AsyncLLM.report is startup_report"):
            assert llm.report == llm.startup_report == {"num_blocks": "128"}

    run(service, scenario)


def test_a_warm_up_can_be_awaited_while_a_stream_goes_on() -> None:
    async def scenario(llm: AsyncLLM) -> None:
        stream = llm.generate("a b", SEEDED)
        texts = [(await anext(stream)).delta]
        assert await llm.warmup() >= 0
        texts += [event.delta async for event in stream]
        assert "".join(texts) == text_of("a b", SEEDED)

    run(fake_service(), scenario)


def test_an_event_loop_that_has_ended_is_forgotten() -> None:
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def scenario(llm: AsyncLLM) -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await collect_events(llm, "hello")

    service = fake_service()
    llm = AsyncLLM.from_service(service)
    for _ in range(3):
        asyncio.run(scenario(llm))

    def are_forgotten() -> bool:
        gc.collect()
        return [loop() for loop in loops] == [None] * 3

    wait_until(are_forgotten)  # the engine's thread may still be in the call that wakes the last loop
    llm.close()
