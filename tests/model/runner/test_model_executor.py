"""ModelExecutor: rows are sampled in the plan's order, blocks are copied first, and steps may have no rows."""

from dataclasses import replace

import numpy as np
import pytest

from chairlift.model.backends.loaded_model import LoadedModel
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.runner.model_loading import load
from support_plans import int32
from support_runner import GREEDY, PROMPT, SEEDED, alone, started


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load(RunnerConfig(dtype="float64", device="cpu"))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1,), (2, 1)])
def test_rows_are_sampled_in_the_order_of_the_plan(model: LoadedModel, order: tuple[int, ...]) -> None:
    runner, driver = started(model)
    sequences = [driver.add([number, *PROMPT], GREEDY) for number in range(3)]
    for sequence in sequences:
        driver.generate(sequence, 1)
    plan = driver.plan([(sequence, 1) for sequence in sequences])
    runner.launch(replace(plan, sample_rows=np.array(order, np.int32)))
    tokens = runner.collect().tokens.tolist()
    assert tokens == [alone(model, [number, *PROMPT], GREEDY, 2).outputs[1] for number in order]


def test_a_copied_block_serves_a_second_sequence(model: LoadedModel) -> None:
    runner, driver = started(model, block_size=16)
    first, second = driver.add(PROMPT, GREEDY), driver.add(PROMPT, SEEDED)
    driver.step([(first, len(PROMPT))])
    last = len(first.tables[0]) - 1
    second.computed = len(PROMPT) - 1
    plan = driver.plan([(second, 1)])
    shared = [(second.slot, 0, index, block) for index, block in enumerate(first.tables[0][:last])]
    own = (second.slot, 0, last, second.tables[0][last])
    plan = replace(plan, new_blocks=int32(*shared, own), block_copies=int32((first.tables[0][last], own[3])))
    runner.launch(plan)
    driver.apply_result([(second, 1)], plan, runner.collect())
    second.tables[0][:last] = first.tables[0][:last]
    driver.generate_all([first, second], 6, max_chunk=1)
    assert first.outputs == alone(model, PROMPT, GREEDY, 6).outputs
    assert second.outputs == alone(model, PROMPT, SEEDED, 6).outputs


def test_a_plan_may_only_release_or_sample_nothing(model: LoadedModel) -> None:
    runner, driver = started(model)
    sequence = driver.add(PROMPT, GREEDY)
    driver.step([(sequence, 10)])
    assert sequence.outputs == []
    driver.remove(sequence)
    plan = driver.plan([])
    runner.launch(plan)
    assert len(runner.collect().tokens) == 0
