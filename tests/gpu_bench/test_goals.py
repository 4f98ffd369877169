"""goals.py: each figure is found in the results and compared with its goal."""

from typing import Any

import pytest

from gpu_bench.goals import GOALS, Goal, figure_rows, table


def results_with(value: float, goal: Goal) -> dict[str, Any]:
    """Return results in which only the figure of a goal is measured."""
    result: Any = value
    for key in reversed(goal.keys):
        result = {key: result}
    return {goal.part: result}


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.title)
def test_a_goal_is_met_at_its_bound_and_missed_beyond_it(goal: Goal) -> None:
    worse = 0.99 if goal.comparison == "at least" else 1.01
    for factor, is_met in ((1.0, True), (worse, False), (1 / worse, True)):
        (row,) = [each for each in figure_rows(results_with(goal.bound * factor, goal)) if each["value"] is not None]
        assert (row["figure"], row["is_met"]) == (goal.title, is_met)


def test_goals_are_those_of_the_issue() -> None:
    bounds = {(goal.part, *goal.keys): (goal.comparison, goal.bound) for goal in GOALS}
    assert bounds["decode-8b", "batches", "64", "share_of_roofline"] == ("at least", 0.6)
    assert bounds["decode-8b", "batches", "1", "share_of_roofline"] == ("at least", 0.7)
    assert bounds["decode-0.6b", "batches", "1", "step_seconds"] == ("at most", 1.8e-3)
    assert bounds["idle-8b", "idle_share"] == ("at most", 0.05)
    assert bounds["mixed-0.6b", "output_tokens_per_second"] == ("at least", 18_000)
    assert bounds["baseline-8b", "ratio"] == ("at least", 5.0)
    assert len(bounds) == len(GOALS) == 9


def test_a_figure_without_a_result_is_not_measured() -> None:
    assert {(row["value"], row["is_met"]) for row in figure_rows({"decode-8b": {}})} == {(None, None)}


def test_no_goal_applies_to_other_shapes() -> None:
    rows = figure_rows(results_with(0.7, GOALS[0]), goals_apply=False)
    assert rows[0]["value"] == 0.7 and rows[0]["is_met"] is None


def test_the_table_shows_value_goal_and_verdict() -> None:
    results = results_with(0.625, GOALS[0]) | results_with(0.00195, GOALS[3]) | results_with(18_500.4, GOALS[6])
    lines = list(table(figure_rows(results)))
    assert len(lines) == 1 + len(GOALS)
    assert lines[1].split()[-6:] == ["62.5%", "at", "least", "60.0%", "(80.0%)", "yes"]
    assert lines[4].split()[-7:] == ["1.95", "ms", "at", "most", "1.80", "ms", "no"]
    assert "18,500 output tok/s" in lines[7] and lines[7].endswith("yes")
    assert "not measured" in lines[2] and lines[2].endswith("-")
