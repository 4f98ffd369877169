"""runner_steps.py: plans drive a real runner at the wanted contexts; weights are random and reproducible."""

import itertools
from contextlib import closing

import numpy as np
import pytest
import torch

from chairlift.core.errors import ConfigError
from chairlift.engine.step_plan import LAST_SAMPLED, StepPlan
from gpu_bench.bench_shapes import SIZES
from gpu_bench.runner_steps import BLOCK_SIZE, RunnerSteps, load_random

CPU, TINY = torch.device("cpu"), SIZES["tiny"]


@pytest.fixture(scope="module")
def steps() -> RunnerSteps:
    return RunnerSteps(load_random(TINY.small, CPU), TINY)


def recorded(steps: RunnerSteps, monkeypatch: pytest.MonkeyPatch) -> list[StepPlan]:
    plans: list[StepPlan] = []
    launch = steps.runner.launch
    monkeypatch.setattr(steps.runner, "launch", lambda plan: (plans.append(plan), launch(plan)))
    return plans


def test_timed_steps_have_the_wanted_batch_and_mean_context(
    steps: RunnerSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = recorded(steps, monkeypatch)
    times = steps.time_decode(3, limit=60.0)
    assert len(times.seconds) == TINY.num_steps and all(each > 0 for each in times.seconds)
    assert sum(times.seconds) <= times.total and times.mean_seconds == times.total / TINY.num_steps
    assert abs(times.mean_context - TINY.context) <= 1
    first, *later = plans
    assert [plan.num_rows for plan in plans] == [3] * (TINY.num_steps + TINY.num_steps // 4)
    assert len(first.new_sequences) == 3 and not any(plan.new_sequences for plan in later)
    assert np.diff([plan.start_positions[0] for plan in plans]).tolist() == [1] * len(later)
    assert all((plan.input_ids == LAST_SAMPLED).all() for plan in later) and (first.input_ids >= 0).all()
    blocks = first.new_blocks
    assert len(set(blocks[:, 3].tolist())) == len(blocks) and blocks[:, 3].max() < steps.info.num_blocks
    longest = int(plans[-1].start_positions[0]) + 1
    assert len(blocks) * BLOCK_SIZE >= 3 * longest  # no step needs a block that its sequence does not have


@pytest.mark.parametrize(("limit", "num_steps"), [(2.5, 2), (0.5, 1)])
def test_no_step_but_the_first_starts_after_the_limit(
    steps: RunnerSteps, monkeypatch: pytest.MonkeyPatch, limit: float, num_steps: int
) -> None:
    moments = itertools.count(0.0, 1.0)
    monkeypatch.setattr("gpu_bench.runner_steps.time.perf_counter", lambda: next(moments))
    assert len(steps.time_decode(1, limit=limit).seconds) == num_steps


def test_at_most_two_steps_are_in_flight_and_all_are_collected(
    steps: RunnerSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, collect, depth = steps.runner.launch, steps.runner.collect, [0]
    monkeypatch.setattr(steps.runner, "launch", lambda plan: (depth.append(depth[-1] + 1), launch(plan)))
    monkeypatch.setattr(steps.runner, "collect", lambda: (depth.append(depth[-1] - 1), collect())[1])
    plans = steps.start_decodes(2)
    assert len(steps.run(itertools.islice(plans, 5))) == 5
    assert max(depth) == 2 and depth[-1] == 0 and min(depth) == 0


def test_prefill_is_one_step_of_the_whole_prompt(steps: RunnerSteps, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = recorded(steps, monkeypatch)
    steps.prefill()
    steps.time_decode(1, limit=60.0)
    steps.prefill()
    prefills = [plan for plan in plans if plan.num_tokens > 1]
    assert [(plan.num_rows, plan.num_tokens, plan.start_positions[0]) for plan in prefills] == [
        (1, TINY.prefill, 0)
    ] * 2


def test_weights_are_drawn_once_for_a_seed() -> None:
    first, again = (load_random(TINY.large, CPU) for _ in range(2))
    assert first.config.dtype == "bfloat16" and first.model_id == "random tiny Llama"
    tables = [loaded.model._table for loaded in (first, again)]  # type: ignore[attr-defined]
    assert torch.equal(*tables) and tables[0].dtype == torch.bfloat16
    assert 0.018 < float(tables[0].float().std()) < 0.022


def test_a_start_that_fails_frees_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[bool] = []
    monkeypatch.setattr("gpu_bench.runner_steps.TorchRunner.stop", lambda runner: stopped.append(True))
    with pytest.raises(ConfigError, match="max_memory"):
        RunnerSteps(load_random(TINY.large, CPU), TINY, max_memory=-1)
    assert stopped == [True]


def test_close_ends_the_runner() -> None:
    with closing(RunnerSteps(load_random(TINY.large, CPU), TINY)) as steps:
        steps.prefill()
    with pytest.raises(AssertionError, match="has stopped"):
        _ = steps.runner.kv_cache
