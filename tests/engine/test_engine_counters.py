"""Counters: every reason has a count from the start; they add up to the scheduled, generated and finished work."""

from chairlift.engine.engine_counters import Counters
from chairlift.engine.runner.fake_model import FakeConfig
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
