"""QueueWaitClock: the seconds by reason add up to the time in the queue, at no cost per waiting request."""

import random

import pytest

from chairlift.core.request_timeline import Timeline
from chairlift.engine.queue_wait_by_reason import QueueWaitClock, WaitReason
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.engine.timeline import TimelineRecorder
from support_engine import EngineHarness, make_request, make_scheduler, run_step
from support_requests import run_random_engine


def test_a_recorder_takes_the_difference() -> None:
    clock, recorder = QueueWaitClock(), TimelineRecorder(10.0)
    clock.set(WaitReason.BLOCKS, 10.0)
    recorder.enqueued(clock, 12.0)
    clock.set(WaitReason.BUDGET, 15.0)
    recorder.dequeued(clock, 16.0)
    assert dict(recorder.build().wait_seconds) == {"budget": 1.0, "blocks": 3.0}


def test_waiting_for_a_prefix_is_its_own_whatever_the_queue_does() -> None:
    clock, recorder = QueueWaitClock(), TimelineRecorder(0.0)
    recorder.enqueued(clock, 0.0)
    clock.set(WaitReason.BLOCKS, 1.0)
    recorder.prefix_wait(clock, 2.0)
    recorder.prefix_wait(clock, 3.0)
    assert recorder.waits_for_prefix
    recorder.prefix_wait_ended(clock, 6.0)
    recorder.prefix_wait_ended(clock, 7.0)
    assert not recorder.waits_for_prefix
    recorder.dequeued(clock, 8.0)
    assert dict(recorder.build().wait_seconds) == {"budget": 1.0, "blocks": 3.0, "prefix": 4.0}


def test_leaving_the_queue_ends_the_wait_for_a_prefix() -> None:
    clock, recorder = QueueWaitClock(), TimelineRecorder(0.0)
    recorder.enqueued(clock, 0.0)
    recorder.prefix_wait(clock, 2.0)
    recorder.dequeued(clock, 5.0)
    assert dict(recorder.build().wait_seconds) == {"budget": 2.0, "prefix": 3.0}


def test_the_wait_so_far_counts_every_reason() -> None:
    clock, recorder = QueueWaitClock(), TimelineRecorder(0.0)
    assert recorder.wait_seconds(clock.read(9.0), 9.0) == 0.0
    recorder.enqueued(clock, 1.0)
    clock.set(WaitReason.BLOCKS, 2.0)
    assert recorder.wait_seconds(clock.read(4.5), 4.5) == 3.5
    recorder.prefix_wait(clock, 5.0)
    assert recorder.wait_seconds(clock.read(7.0), 7.0) == 6.0
    recorder.dequeued(clock, 8.0)
    assert recorder.wait_seconds(clock.read(99.0), 99.0) == 7.0


def test_times_count_from_when_it_was_queued() -> None:
    recorder = TimelineRecorder(100.0)
    recorder.record("scheduled", 101.5)
    recorder.record("finished", 103.0, "stop")
    assert [(event.name, event.at, event.detail) for event in recorder.build().events] == [
        ("queued", 0.0, ""), ("scheduled", 1.5, ""), ("finished", 3.0, "stop"),
    ]  # fmt: skip


def queue_seconds(timeline: Timeline) -> float:
    """Seconds between joining the queue (queued, preempted) and leaving it (scheduled, finished)."""
    total, since = 0.0, None
    for event in timeline.events:
        if event.name in {"queued", "preempted"}:
            since = event.at
        elif event.name in {"scheduled", "finished"} and since is not None:
            total, since = total + event.at - since, None
    return total


@pytest.mark.share(4)
@pytest.mark.parametrize("seed", range(12))
def test_the_seconds_waited_add_up_to_the_time_in_the_queue(seed: int) -> None:
    """Also with preemptions, aborts, failures and prefix waits. Events are in order of time."""
    for final in run_random_engine(seed, 60).finals.values():
        if final.timeline is not None:
            assert sum(seconds for _, seconds in final.timeline.wait_seconds) == pytest.approx(
                queue_seconds(final.timeline)
            )
            assert all(seconds > 0 for _, seconds in final.timeline.wait_seconds)
            moments = [event.at for event in final.timeline.events]
            assert moments == sorted(moments) and final.timeline.events[-1].name == "finished"


def test_the_first_token_has_the_times_until_then_and_further_ones_have_none() -> None:
    scheduler = make_scheduler()
    scheduler.add_request(make_request("a", 10, 9), 1.0)
    outputs = [output for number in range(4) for output in run_step(scheduler, 2.0 + number)[1]]
    first, *others = [output for output in outputs if output.token_ids]
    assert first.timeline is not None
    assert [event.name for event in first.timeline.events] == ["queued", "scheduled", "first_token"]
    assert others and all(output.timeline is None for output in others)


def test_every_reason_is_recorded() -> None:
    """The reasons are slots, blocks, the tokens of the step, and the prefix of another sequence."""
    rng = random.Random(1)
    cases_by_reason = {
        "running_limit": ({"max_running_requests": 1}, [[1, 2], [3, 4]], 64),
        "blocks": ({}, [[rng.randrange(200) for _ in range(20)] for _ in range(2)], 8),
        "budget": ({"max_batch_tokens": 8, "long_prefill_threshold": 8}, [[1] * 16, [2] * 16], 64),
        "prefix": ({"max_batch_tokens": 8, "max_chunk_tokens": 4}, [[1] * 16, [1] * 16], 64),
    }
    for reason, (options, prompts, num_blocks) in cases_by_reason.items():
        harness = EngineHarness(FakeConfig(vocab_size=200, num_blocks=num_blocks, block_size=4), **options)
        harness.submit(*[make_request(str(number), prompt, 5) for number, prompt in enumerate(prompts)])
        harness.drain()
        timeline = harness.finals["1"].timeline
        assert timeline is not None and [name for name, _ in timeline.wait_seconds] == [reason], reason


def test_a_request_that_gave_its_prefix_up_waits_for_something_else_from_then_on() -> None:
    fake = FakeConfig(vocab_size=200, num_blocks=12, block_size=4)
    harness = EngineHarness(fake, max_chunk_tokens=1, prefix_wait_steps=3)
    harness.submit(make_request("a", 20, 20), make_request("b", 20, 20))
    harness.step()
    harness.clock.advance(1.0)
    assert harness.sequence("b").timeline_recorder.waits_for_prefix
    for _ in range(5):
        harness.step()
        harness.clock.advance(1.0)
    assert harness.sequence("b").table is None, "b should find no free blocks"
    assert not harness.sequence("b").timeline_recorder.waits_for_prefix
    harness.drain()
    timeline = harness.finals["b"].timeline
    assert timeline is not None
    waited = dict(timeline.wait_seconds)
    assert waited["prefix"] == pytest.approx(3.0) and waited["blocks"] > 0
