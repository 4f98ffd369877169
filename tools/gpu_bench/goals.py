"""GOALS, figure_rows, table: the figures of a benchmark beside their goals."""

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

COMPARISONS = {"at least": operator.ge, "at most": operator.le}


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure and its goal.

    Attributes:
        title: what is measured.
        part: the part that measures it.
        keys: where it is in the part's result.
        comparison: "at least" or "at most".
        bound: the goal.
        unit: "%" for shares, which are stored as fractions, "ms" for milliseconds, which are stored as seconds, else
            the unit as stored.
        aim: a better value that is aimed at; None for none.
    """

    title: str
    part: str
    keys: tuple[str, ...]
    comparison: str
    bound: float
    unit: str
    aim: float | None = None


SHARE, SPEED = "share_of_roofline", "output_tokens_per_second"
GOALS = (
    Goal("8B, decode at batch 64, of the roofline", "decode-8b", ("batches", "64", SHARE), "at least", 0.6, "%", 0.8),
    Goal("8B, decode at batch 256, of the roofline", "decode-8b", ("batches", "256", SHARE), "at least", 0.6, "%", 0.8),
    Goal("8B, decode at batch 1, of the roofline", "decode-8b", ("batches", "1", SHARE), "at least", 0.7, "%"),
    Goal("0.6B, decode step at batch 1", "decode-0.6b", ("batches", "1", "step_seconds"), "at most", 0.0018, "ms"),
    Goal("8B, prefill, of the GEMM peak", "prefill-8b", ("share_of_gemm_peak",), "at least", 0.5, "%"),
    Goal("8B, GPU idle in decode at batch 64", "idle-8b", ("idle_share",), "at most", 0.05, "%"),
    Goal("0.6B, mixed workload", "mixed-0.6b", (SPEED,), "at least", 18_000, "output tok/s"),
    Goal("8B, mixed workload", "mixed-8b", (SPEED,), "at least", 8000, "output tok/s"),
    Goal("8B, speed over transformers' paged SDPA", "baseline-8b", ("ratio",), "at least", 5.0, "times"),
)  # fmt: skip
"""The goals are for an H200 in bfloat16."""


def figure_rows(results: Mapping[str, Mapping[str, Any]], *, goals_apply: bool = True) -> list[dict[str, Any]]:
    """Return a row for each goal: its value, None where it was not measured, and whether the goal is met.

    `results` are by part. Whether a goal is met is None without a value, and where `goals_apply` is False.
    """
    rows = []
    for goal in GOALS:
        value: Any = results.get(goal.part, {})
        for key in goal.keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        is_met = None if value is None or not goals_apply else bool(COMPARISONS[goal.comparison](value, goal.bound))
        rows.append({
            "figure": goal.title, "part": goal.part, "value": value, "unit": goal.unit, "goal": goal.bound,
            "comparison": goal.comparison, "aim": goal.aim, "is_met": is_met,
        })  # fmt: skip
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of the printed table."""
    width = max(len(row["figure"]) for row in rows)
    yield f"{'figure':<{width}} {'value':>22} {'goal':>31}  met"
    for row in rows:
        value = "not measured" if row["value"] is None else _shown(row["value"], row["unit"])
        goal = f"{row['comparison']} {_shown(row['goal'], row['unit'])}"
        if row["aim"] is not None:
            goal += f" ({_shown(row['aim'], row['unit'])})"
        met = {None: "-", True: "yes", False: "no"}[row["is_met"]]
        yield f"{row['figure']:<{width}} {value:>22} {goal:>31}  {met}"


def _shown(value: float, unit: str) -> str:
    if unit == "%":
        return f"{value:.1%}"
    if unit == "ms":
        return f"{value * 1000:.2f} ms"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}"
