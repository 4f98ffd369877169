"""RequestLimits: the smaller of two lengths holds; what is admitted runs to its end alone in the pool."""

from chairlift.engine.config import SchedulerConfig
from chairlift.engine.request_limits import RequestLimits
from chairlift.engine.runner.base import RunnerInfo
from chairlift.engine.runner.fake_model import FakeConfig
from support_engine import EngineHarness, make_request
from support_shares import for_each


def test_the_smaller_of_two_lengths_holds() -> None:
    info = RunnerInfo(vocab_size=9, max_model_len=30, num_blocks=99, block_size=4)
    assert RequestLimits.from_config(SchedulerConfig(max_model_len=20), info).max_model_len == 20
    assert RequestLimits.from_config(SchedulerConfig(max_model_len=40), info).max_model_len == 30
    assert RequestLimits.from_config(SchedulerConfig(), info).max_model_len == 30


@for_each("windows", [(None,), (6,), (None, 6), (2, 9)])
@for_each("num_blocks", [8, 9, 999])
def test_a_length_that_fits_the_cache_is_one_whose_longest_request_runs_alone_to_its_end(
    windows: tuple[int | None, ...], num_blocks: int
) -> None:
    info = RunnerInfo(vocab_size=99, max_model_len=64, num_blocks=num_blocks, block_size=3, windows=windows)
    config = SchedulerConfig(fits_length_to_cache=True, max_batch_tokens=8)
    limits = RequestLimits.from_config(config, info)
    assert limits.max_output_tokens(0) == limits.max_model_len <= 64
    assert limits.blocks_needed(limits.max_model_len - 1) <= num_blocks
    assert limits.max_model_len == 64 or limits.blocks_needed(limits.max_model_len) > num_blocks
    fake = FakeConfig(vocab_size=99, max_model_len=64, num_blocks=num_blocks, block_size=3, windows=windows)
    harness = EngineHarness(fake, max_batch_tokens=8, fits_length_to_cache=True)
    harness.submit(make_request("a", 5, limits.max_model_len - 5))
    harness.drain()
    harness.check_outputs(no_faults=True)
    harness.close()


@for_each("windows", [(None,), (6,), (None, 6), (2, 9)])
@for_each("overlap", [False, True])
def test_whatever_is_admitted_runs_to_its_end_alone_in_the_pool(windows: tuple[int | None, ...], overlap: bool) -> None:
    """Pitfalls 4 and 16: a pool of exactly the blocks that a request needs is enough, to the last token."""
    config = SchedulerConfig(overlap=overlap, max_batch_tokens=8)
    info = RunnerInfo(vocab_size=99, max_model_len=64, num_blocks=999, block_size=3, windows=windows)
    for prompt, outputs in ((1, 40), (20, 20), (40, 1), (33, 7)):
        needed = RequestLimits.from_config(config, info).blocks_needed(prompt + outputs - 1)
        fake = FakeConfig(vocab_size=99, max_model_len=64, num_blocks=needed, block_size=3, windows=windows)
        harness = EngineHarness(fake, overlap=overlap, max_batch_tokens=8)
        harness.submit(make_request("a", prompt, outputs))
        harness.drain()
        harness.check_outputs(no_faults=True)
        assert prompt < 20 or harness.scheduler.counters.max_in_flight == 1 + overlap, (
            "no room for two chunks in flight"
        )
        harness.close()
