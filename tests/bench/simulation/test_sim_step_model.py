"""SimStepModel: the costs of a step and their sum, its file, and costs and files that are refused."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from chairlift.bench.simulation.sim_step_model import SMOL135_CPU, SimStepModel, StepWork, read_model, write_model
from chairlift.core.errors import ConfigError
from support_step_plans import plan

MODEL = SimStepModel(step=1.0, row=0.1, prefill_token=0.01, context_token=0.001, prefill_pair=0.0001)


def test_the_work_of_a_step_is_counted_row_by_row() -> None:
    assert StepWork.of_plan(plan((9, 1), (4, 1), (10, 3))) == (1, 3, 3, 10 + 5 + 13, 11 + 12 + 13)


def test_seconds_are_the_sum_of_what_each_thing_costs() -> None:
    assert MODEL.seconds(StepWork(1, 2, 30, 400, 5000)) == pytest.approx(1 + 0.2 + 0.3 + 0.4 + 0.5)
    assert SMOL135_CPU.origin and SMOL135_CPU.seconds(StepWork(1, 22, 0, 4000, 0)) == pytest.approx(0.038, rel=0.1)


def test_with_confirmed_drafts_a_token_takes_its_part_of_a_decode_step_and_its_own_row() -> None:
    drafting = replace(MODEL, confirmed_drafts=3.0)
    assert drafting.seconds(StepWork(1, 2, 0, 400, 0)) == pytest.approx(1 / 4 + 0.2 + 0.4 / 4)
    prefill = StepWork(1, 2, 30, 400, 5000)
    assert drafting.seconds(prefill) == MODEL.seconds(prefill), "steps with prompt tokens have no drafts"


@pytest.mark.parametrize(
    "numbers",
    [
        {"step": -1.0}, {"step": math.inf}, {"step": math.nan}, {"step": 1, "noise": -1},
        {"step": 1, "confirmed_drafts": -0.5},
    ],
)  # fmt: skip
def test_a_cost_that_cannot_be_is_refused(numbers: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="at least 0"):
        SimStepModel(**numbers)


def test_a_step_that_takes_no_time_is_refused() -> None:
    with pytest.raises(ConfigError, match="no time"):
        SimStepModel(step=0.0, prefill_token=1.0)


def test_a_model_survives_its_file(tmp_path: Path) -> None:
    path = str(tmp_path / "model.json")
    write_model(path, MODEL)
    assert read_model(path) == MODEL


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"step": 1, "rows": 2}', "unknown field 'rows'; available are step, row"),
        ('{"row": 1}', "required field `step`"),
        ('{"step": "a"}', "Expected `float`"),
        ("[1]", "Expected `object`"),
        ("{", "does not contain step times"),
        ('{"step": -1}', "at least 0, got -1"),
    ],
)
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "model.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_model(str(path))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*nothing\.json"):
        read_model(str(tmp_path / "nothing.json"))
