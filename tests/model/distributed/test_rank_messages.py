"""Messages to and from ranks survive their encoding."""

import numpy as np
import pytest
import torch

from chairlift.core.errors import ConfigError, EngineDead
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.step_plan import NewSequence, StepPlan, TokenMasks
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.distributed.rank_messages import (
    LENGTH_BYTES,
    CallFailed,
    Collected,
    FromRank,
    Launch,
    Masks,
    PeersLost,
    Progress,
    RankStartFailed,
    StartRank,
    decode_from_rank,
    decode_to_rank,
    encode,
)
from support_plans import int32


def test_a_plan_arrives_as_it_was_and_its_arrays_can_be_written() -> None:
    params = SamplingParams(
        seed=-3, logit_bias={3: 1.5}, stop=["a"], max_tokens=3, logprobs=2, logits_processors={"cold": {"x": 1}},
        temperature=0.5,
    ).with_defaults({}, max_tokens=1, seed=0)  # fmt: skip
    new = NewSequence(2, (1, 2, 3), 1, params, eos_token_ids=(2,), choice_index=1, pooling="mean")
    plan = StepPlan(
        9, (1, 2), (new,), int32(2, 0), int32(1, 3), int32(2, 0), np.array([[2, 0, 0, 5]], np.int32),
        int32(-1, 1, 2, 3), int32(0, 1), block_copies=np.array([[4, 5]], np.int32), masked_samples=int32(1),
        state_saves=np.array([[1, 3, 7]], np.int32),
    )  # fmt: skip
    frame = encode(Launch(plan))
    assert int.from_bytes(frame[:LENGTH_BYTES], "big") == len(frame) - LENGTH_BYTES
    message = decode_to_rank(frame[LENGTH_BYTES:])
    assert isinstance(message, Launch)
    assert message.plan.new_sequences == (new,) and message.plan.released_slots == (1, 2)
    for name in ("slots", "num_new_tokens", "start_positions", "new_blocks", "input_ids", "sample_rows",
                 "block_copies", "masked_samples", "state_loads", "state_saves"):  # fmt: skip
        ours, theirs = getattr(plan, name), getattr(message.plan, name)
        assert np.array_equal(ours, theirs) and ours.shape == theirs.shape and theirs.dtype == np.int32, name
        torch.from_numpy(theirs)  # warns of memory that cannot be written
        assert theirs.flags.writeable


def test_masks_and_the_start_arrive() -> None:
    masks = Masks(4, TokenMasks(int32(0, 2), np.arange(20, dtype=np.int32).reshape(2, 10) - 7))
    message = decode_to_rank(encode(masks)[LENGTH_BYTES:])
    assert isinstance(message, Masks) and message.step_id == 4
    assert np.array_equal(message.masks.bitmask, masks.masks.bitmask)
    start = StartRank(RunnerConfig(max_memory=0.5, tensor_parallel_size=2), 1, 2, "/tmp/a", 20, (b"/a", b"/\xff"), 0.5)
    assert decode_to_rank(encode(start)[LENGTH_BYTES:]) == start


@pytest.mark.parametrize("report", [
    Collected(3, 2**32 - 1), CallFailed(1, 77, "ValueError('x')"), PeersLost("closed"), Progress(2**40),
])  # fmt: skip
def test_reports_arrive(report: FromRank) -> None:
    assert decode_from_rank(encode(report)[LENGTH_BYTES:]) == report


def test_the_error_of_a_start_keeps_its_type_and_details() -> None:
    report = decode_from_rank(encode(RankStartFailed.of(ConfigError("too small", option="num_blocks")))[LENGTH_BYTES:])
    assert isinstance(report, RankStartFailed)
    error = report.error()
    assert isinstance(error, ConfigError) and error.details == {"option": "num_blocks"}
    other = RankStartFailed.of(ZeroDivisionError("by zero")).error()
    assert isinstance(other, EngineDead) and "ZeroDivisionError: by zero" in other.message


def test_the_error_of_a_start_may_have_any_text() -> None:
    report = decode_from_rank(encode(RankStartFailed.of(ConfigError("half \ud800", size=2**70)))[LENGTH_BYTES:])
    assert isinstance(report, RankStartFailed) and report.error().message == "half ?"
