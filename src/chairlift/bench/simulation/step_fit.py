"""fit: fits the step time model to the steps of a real run."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from chairlift.bench.simulation.sim_step_model import COSTS, SimStepModel
from chairlift.bench.simulation.step_samples import StepSample
from chairlift.core.errors import ConfigError

Float64 = NDArray[np.float64]

LEAST_STEPS = 20
ROUNDS = 30
NEAR = 0.01
"""Relative errors below this count as this, so that no step's weight grows without bound."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted model and its errors on the steps that it was fitted to.

    Attributes:
        model: the model; its noise is the spread that the costs leave unexplained.
        steps: number of steps.
        median_error: median of |predicted / measured - 1|.
        p90_error: 90th percentile of the same.
    """

    model: SimStepModel
    steps: int
    median_error: float
    p90_error: float


def fit(samples: Sequence[StepSample], origin: str = "") -> Fit:
    """Fit a model to the steps of a real run, in the order in which they ended.

    A step's duration counts from its start, or from the end of the step before it if that is later, because two steps
    can be in flight. The fit minimizes the sum of |measured / predicted - 1|, on which pauses of the machine have
    little effect, by iteratively reweighted least squares (Schlossmacher, An Iterative Technique for Absolute
    Deviations Curve Fitting, JASA 1973). No cost is negative: with five costs, every subset of nonzero ones can be
    tried, and the best subset whose unconstrained solution has no negative cost is the exact solution. (The active sets
    of Lawson & Hanson, Solving Least Squares Problems, 1974, chapter 23, search for it.)

    Raises ConfigError when there are fewer than LEAST_STEPS steps.
    """
    if len(samples) < LEAST_STEPS:
        raise ConfigError(f"fitting step times needs at least {LEAST_STEPS} steps in the trace, got {len(samples)}")
    work = np.array([each.work for each in samples], np.float64)
    seconds = np.array(list(_seconds(samples)))
    costs = _least_squares(work, seconds, 1 / seconds)
    for _ in range(ROUNDS):
        predicted = work @ costs
        distance = np.maximum(np.abs(seconds / predicted - 1), NEAR)
        costs = _least_squares(work, seconds, 1 / (predicted * np.sqrt(distance)))
    errors: Float64 = work @ costs / seconds - 1
    noise = _spread(errors)
    model = SimStepModel(**dict(zip(COSTS, costs.tolist(), strict=True)), noise=noise, origin=origin)
    median, p90 = np.percentile(np.abs(errors), (50, 90)).tolist()
    return Fit(model, len(samples), median, p90)


def _seconds(samples: Iterable[StepSample]) -> Iterator[float]:
    before = float("-inf")
    for _, started_at, ended in samples:
        since = max(started_at, before) if before < ended else started_at
        yield max(ended - since, 1e-9)
        before = ended


def _spread(errors: Float64) -> float:
    """Return the robust standard deviation: 1.4826 times the median distance from the median."""
    return float(1.4826 * np.median(np.abs(errors - np.median(errors))))


def _least_squares(work: Float64, seconds: Float64, weights: Float64) -> Float64:
    """Return float64 [5], the costs >= 0 that minimize sum((weights * (work @ costs - seconds))²).

    One of the first two costs is always nonzero, because every step takes time.
    """
    rows, target = work * weights[:, None], seconds * weights
    scale = np.maximum(np.abs(rows).max(axis=0), 1e-300)
    square, right = (rows / scale).T @ (rows / scale), (rows / scale).T @ target
    best, best_residual = np.zeros(len(COSTS)), float("inf")
    for count in range(1, len(COSTS) + 1):
        for columns in map(list, combinations(range(len(COSTS)), count)):
            if not {0, 1} & set(columns):
                continue
            solution = np.linalg.lstsq(square[np.ix_(columns, columns)], right[columns], rcond=1e-12)[0]
            residual = float(solution @ square[np.ix_(columns, columns)] @ solution - 2 * solution @ right[columns])
            if solution.min() >= 0 and residual < best_residual - 1e-12 * abs(residual):
                best_residual, best = residual, np.zeros(len(COSTS))
                best[columns] = solution
    costs: Float64 = best / scale
    return costs
