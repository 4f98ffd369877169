"""warmup_plans: plans reach every limit and exceed none, and computing them leaves the runner's state unchanged."""

import numpy as np
import pytest
import torch

from chairlift.engine.step_plan import TokenMasks
from chairlift.engine.step_result import StepResult
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.layers import onednn_linear
from chairlift.model.runner.model_executor import ModelExecutor, PendingSample
from chairlift.model.runner.torch_runner import TorchRunner
from chairlift.model.runner.warmup_and_peak_memory_plans import DECODE_CONTEXT, peak_plans, warmup_plans
from chairlift.model.sampling.device.device_sampling import DeviceSampler
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
def test_a_warm_up_changes_no_cache_table_or_sampled_token(block_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunnerConfig(
        dtype="float64", device="cpu", block_size=block_size, num_blocks=400, max_batch_tokens=300,
        max_running_requests=64,
    )  # fmt: skip
    seeded, prompt = params(seed=99, temperature=0.9, repetition_penalty=1.1), list(b"One chair passes the platform.")
    outputs = []
    for warms in (False, True):
        runner = TorchRunner(config)
        driver = Driver(runner, runner.start(), 0)
        sequence = driver.add(prompt, seeded)
        driver.generate(sequence, 6)
        assert runner._engine is not None
        before = [(kv.key.clone(), kv.value.clone()) for kv in runner._engine.kv]
        if warms:
            runner.warmup()
            for kv, (key, value) in zip(runner._engine.kv, before, strict=True):
                assert torch.equal(kv.key, key) and torch.equal(kv.value, value)
        driver.generate(sequence, 12)
        outputs.append(sequence.outputs)
    assert outputs[0] == outputs[1] and len(outputs[0]) == 12


@pytest.mark.parametrize(("max_slots", "longest"), [(256, 512), (8, 512), (8, 20)])
def test_every_size_that_steps_are_padded_to_is_computed_once(max_slots: int, longest: int) -> None:
    plans = list(warmup_plans(2048, max_slots, longest, 16, 1, onednn_linear.padded_rows))
    assert all(plan.num_rows <= max_slots for plan in plans)
    assert all((plan.start_positions + plan.num_new_tokens <= longest).all() for plan in plans)
    expected = {
        onednn_linear.padded_rows(count) for count in range(1, min(onednn_linear.TILE_ROWS, max_slots * longest) + 1)
    }
    computed = {onednn_linear.padded_rows(plan.num_tokens) for plan in plans}
    assert expected <= computed if longest > 20 else {1, 2, 4, 8, 16, 24} <= computed


def test_a_warm_up_computes_and_samples_steps_of_full_size(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunnerConfig(
        device="cpu", dtype="float64", num_blocks=9, max_batch_tokens=300, max_running_requests=64
    )  # fmt: skip
    runner = TorchRunner(config)
    info = runner.start()
    computed: list[tuple[int, int]] = []
    real = ModelExecutor.sample

    def watched(executor: ModelExecutor, pending: PendingSample, masks: TokenMasks | None) -> StepResult:
        result, plan = real(executor, pending, masks), pending.plan
        assert np.all(result.tokens < info.vocab_size) and len(result.tokens) == plan.num_rows and not result.row_errors
        computed.append((plan.num_rows, plan.num_tokens))
        return result

    monkeypatch.setattr(ModelExecutor, "sample", watched)
    runner.warmup()
    assert computed == [(1, 300), (64, 64), (1, 128)]


def test_a_warm_up_computes_every_size_of_a_packed_model_and_changes_no_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not onednn_linear.usable(torch.float32, torch.device("cpu")):
        pytest.skip("no oneDNN products here")
    config = RunnerConfig(
        dtype="float32", device="cpu", kernels="torch", num_blocks=100, max_batch_tokens=300, max_running_requests=40
    )
    product, computed = onednn_linear._product, set()

    def watched(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        computed.add(len(x))
        return product(x, weight, bias)

    outputs = []
    for warms in (False, True):
        runner = TorchRunner(config)
        driver = Driver(runner, runner.start(), 0)
        sequence = driver.add(list(b"One chair passes the platform."), params(seed=99, temperature=0.9))
        monkeypatch.setattr(onednn_linear, "_product", watched if warms else product)
        if warms:
            runner.warmup()
        driver.generate(sequence, 12)
        outputs.append(sequence.outputs)
    assert outputs[0] == outputs[1] and len(outputs[0]) == 12
    assert {onednn_linear.padded_rows(count) for count in range(1, onednn_linear.TILE_ROWS + 1)} <= computed


def test_the_peak_is_measured_with_rows_that_a_device_samples_and_with_rows_that_the_host_samples() -> None:
    plans = list(peak_plans(40, 6, 64, 4, 1))
    assert [(plan.num_rows, plan.num_tokens) for plan in plans] == [(6, 6), (6, 6), (1, 40), (1, 40)]
    on_device = [{DeviceSampler.can_sample(new.params) for new in plan.new_sequences} for plan in plans]
    assert on_device == [{True}, {False}, {True}, {True}]
