"""StepStats for tests that run no engine."""

from dataclasses import fields
from typing import Any

from chairlift.engine.step_stats import StepStats


def make_stats(step_id: int = 0, **values: Any) -> StepStats:
    """Make StepStats; fields that are not given are 0."""
    zeros: dict[str, Any] = {spec.name: 0.0 if spec.name.endswith("_ms") else 0 for spec in fields(StepStats)}
    zeros["confirmed_by_position"] = ()
    return StepStats(**(zeros | {"step_id": step_id} | values))
