"""Plans of the largest steps keep every limit, and a runner that computes them looks as if it had not."""

from typing import Any

import numpy as np
import pytest
import torch

from chairlift.model.layers import onednn
from chairlift.model.runner.runner_config import RunnerConfig
from chairlift.model.runner.torch_runner import TorchRunner
from chairlift.model.runner.warmup import DECODE_CONTEXT, warmup_plans
from support_plans import Driver
from support_sampling import params


@pytest.mark.parametrize(
    ("tokens", "requests", "longest", "rows", "generating"),
    [
        (2048, 256, 512, [512] * 4, 256),
        (1025, 256, 512, [1, 512, 512], 256),
        (100, 256, 512, [100], 100),
        (4096, 2, 512, [512, 512], 2),
        (1, 1, 2, [1], 1),
    ],
)
def test_the_largest_steps_fill_every_limit_and_pass_none(
    tokens: int, requests: int, longest: int, rows: list[int], generating: int
) -> None:
    prompts, decodes, *chunk = warmup_plans(tokens, requests, longest, 16, 2)
    assert prompts.num_new_tokens.tolist() == rows and prompts.start_positions.tolist() == [0] * len(rows)
    assert decodes.num_new_tokens.tolist() == [1] * generating
    assert set(decodes.start_positions.tolist()) == {min(DECODE_CONTEXT, longest) - 1}
    assert len(chunk) == (min(tokens, longest // 2) > 1)
    for plan in chunk:
        (start,), (count,) = plan.start_positions, plan.num_new_tokens
        assert start > 0 and 1 < count <= tokens and start + count <= longest
    for plan in (prompts, decodes, *chunk):
        assert plan.num_tokens == plan.num_new_tokens.sum() and not plan.new_blocks[:, 3].any()
        assert len(plan.sample_rows) == plan.num_rows == len(plan.new_sequences)


@pytest.mark.parametrize("block_size", [5, 16])
def test_a_warm_up_leaves_cache_tables_and_draws_as_they_were(block_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunnerConfig(
        dtype="float64", device="cpu", block_size=block_size, num_blocks=400, max_batch_tokens=300,
        max_running_requests=64,
    )  # fmt: skip
    seeded, prompt = params(seed=99, temperature=0.9, repetition_penalty=1.1), list(b"One chair passes the platform.")
    outputs = []
    for warms in (False, True):
        runner = TorchRunner(config)
        driver = Driver(runner, runner.start(), 0)
        ride = driver.board(prompt, seeded)
        driver.generate(ride, 6)
        assert runner._engine is not None
        before = [(kv.key.clone(), kv.value.clone()) for kv in runner._engine.kv]
        if warms:
            runner.warmup()
            for kv, (key, value) in zip(runner._engine.kv, before, strict=True):
                assert torch.equal(kv.key, key) and torch.equal(kv.value, value)
        driver.generate(ride, 12)
        outputs.append(ride.outputs)
    assert outputs[0] == outputs[1] and len(outputs[0]) == 12


@pytest.mark.parametrize(("seats", "longest"), [(256, 512), (8, 512), (8, 20)])
def test_every_size_that_steps_are_padded_to_is_computed_once(seats: int, longest: int) -> None:
    plans = list(warmup_plans(2048, seats, longest, 16, 1, onednn.padded_rows))
    assert all(plan.num_rows <= seats for plan in plans)
    assert all((plan.start_positions + plan.num_new_tokens <= longest).all() for plan in plans)
    wanted = {onednn.padded_rows(count) for count in range(1, min(onednn.TILE_ROWS, seats * longest) + 1)}
    seen = {onednn.padded_rows(plan.num_tokens) for plan in plans}
    assert wanted <= seen if longest > 20 else {1, 2, 4, 8, 16, 24} <= seen


def test_a_warm_up_computes_steps_of_full_size_and_draws_from_them(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunnerConfig(
        device="cpu", dtype="float64", num_blocks=9, max_batch_tokens=300, max_running_requests=64
    )  # fmt: skip
    runner = TorchRunner(config)
    info = runner.start()
    seen: list[tuple[int, int]] = []
    step = "chairlift.model.runner.torch_runner._end"
    real = __import__("chairlift.model.runner.torch_runner", fromlist=["_end"])._end

    def watched(engine: object, begun: Any, masks: object) -> object:
        result, plan = real(engine, begun, masks), begun.plan
        assert np.all(result.tokens < info.vocab_size) and len(result.tokens) == plan.num_rows and not result.row_errors
        seen.append((plan.num_rows, plan.num_tokens))
        return result

    monkeypatch.setattr(step, watched)
    runner.warmup()
    assert seen == [(1, 300), (64, 64), (1, 128)]


def test_a_warm_up_meets_every_size_of_a_packed_model_and_leaves_its_draws_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not onednn.usable(torch.float32, torch.device("cpu")):
        pytest.skip("no oneDNN products here")
    config = RunnerConfig(dtype="float32", device="cpu", num_blocks=100, max_batch_tokens=300, max_running_requests=40)
    product, seen = onednn._product, set()

    def watched(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        seen.add(len(x))
        return product(x, weight, bias)

    outputs = []
    for warms in (False, True):
        runner = TorchRunner(config)
        driver = Driver(runner, runner.start(), 0)
        ride = driver.board(list(b"One chair passes the platform."), params(seed=99, temperature=0.9))
        monkeypatch.setattr(onednn, "_product", watched if warms else product)
        if warms:
            runner.warmup()
        driver.generate(ride, 12)
        outputs.append(ride.outputs)
    assert outputs[0] == outputs[1] and len(outputs[0]) == 12
    assert {onednn.padded_rows(count) for count in range(1, onednn.TILE_ROWS + 1)} <= seen
