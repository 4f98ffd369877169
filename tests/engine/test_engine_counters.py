"""Counters: every reason has a count from the start; they add up to the scheduled, generated and finished work."""

from random import Random

from chairlift.engine.engine_counters import MAX_DRAFT_POSITIONS, Counters
from chairlift.engine.runner.fake_model import FakeConfig
from chairlift.engine.step_stats import StepStats
from support_engine import EngineHarness, make_request


def test_every_reason_has_a_count_from_the_start() -> None:
    assert Counters().finished_by_reason == {"stop": 0, "length": 0, "abort": 0, "error": 0}


def test_counters_add_up() -> None:
    harness = EngineHarness(FakeConfig(vocab_size=200, num_blocks=64, block_size=4))
    harness.submit(make_request("a", 8, 5), make_request("b", 8, 3), make_request("c", [9, 9], 40))
    harness.step(4)
    harness.abort("c")
    harness.drain()
    counters = harness.scheduler.counters
    assert counters.prompt_tokens == 18 and counters.cached_tokens == 4
    assert counters.output_tokens == sum(map(len, harness.tokens.values()))
    assert counters.finished_by_reason == {"stop": 0, "length": 2, "abort": 1, "error": 0}
    assert counters.max_in_flight == 1 and counters.preemptions == counters.failed_steps == 0


def test_confirmed_drafts_are_counted_by_their_position() -> None:
    counters = Counters()
    for num_drafts, num_confirmed in ((4, 2), (3, 0), (3, 3)):
        counters.record_drafts(num_drafts, num_confirmed)
    assert (counters.drafts, counters.draft_tokens, counters.confirmed_draft_tokens) == (3, 10, 5)
    assert counters.confirmed_by_position == [2, 2, 1]
    counters.record_drafts(MAX_DRAFT_POSITIONS + 5, MAX_DRAFT_POSITIONS + 2)
    assert counters.confirmed_by_position == [3, 3, 2, *[1] * (MAX_DRAFT_POSITIONS - 4), 3]
    assert sum(counters.confirmed_by_position) == counters.confirmed_draft_tokens


def test_stats_of_a_step_have_the_drafts_until_then() -> None:
    harness = EngineHarness(FakeConfig(vocab_size=200, num_blocks=64, block_size=4))
    steps: list[StepStats] = []
    harness.loop.on_step = steps.append
    harness.use_drafter(Random(1), wrong=0.3, max_drafts=4)
    harness.submit(make_request("a", 8, 40))
    harness.drain()
    counters, last = harness.scheduler.counters, steps[-1]
    assert steps[0].confirmed_by_position == () and counters.confirmed_draft_tokens > 5
    assert (last.drafts, last.draft_tokens) == (counters.drafts, counters.draft_tokens)
    assert last.confirmed_by_position == tuple(counters.confirmed_by_position)
    assert list(last.confirmed_by_position) == sorted(last.confirmed_by_position, reverse=True)
