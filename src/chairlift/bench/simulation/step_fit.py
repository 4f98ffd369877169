"""step_fit: finds the step model that tells best how long the steps of a real run took.

The run is a trace that `--profile FILE` wrote, or StepStats as JSON lines:

    chairlift bench offline MODEL --profile trace.json
    chairlift bench simulate --fit trace.json --save-step-times model.json
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from chairlift.bench.simulation.sim_step_model import COSTS, SimStepModel, StepWork
from chairlift.core.errors import ConfigError
from chairlift.engine.stats import StepStats

Float64 = NDArray[np.float64]

LEAST_STEPS = 20
ROUNDS = 30
NEAR = 0.01
"""Relative errors below this count as this, so that no step's weight grows without bound."""


class StepSample(NamedTuple):
    """One step of a real run.

    Attributes:
        work: what was in it.
        began: seconds, on any clock.
        ended: on the same.
    """

    work: StepWork
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted model and how well it tells the steps that it was fitted to.

    Attributes:
        model: its noise is the spread that it leaves unexplained.
        steps: how many there were.
        median_error: median of |predicted / measured - 1|.
        p90_error: 90th percentile of the same.
    """

    model: SimStepModel
    steps: int
    median_error: float
    p90_error: float


def sample(stats: StepStats) -> StepSample:
    """Read a step in numbers."""
    work = StepWork(1, stats.num_sequences, stats.num_prefill_tokens, stats.context_tokens, stats.prefill_pairs)
    return StepSample(work, stats.started_ms / 1e3, stats.ended_ms / 1e3)


def fit(samples: Sequence[StepSample], origin: str = "") -> Fit:
    """Fit a model to the steps of a real run, in the order in which they ended.

    A step's time begins when it was begun, or when the one before it ended, if that was later: two may have been in
    flight. What is made small is the sum of |measured / predicted - 1|, which the pauses of a machine hardly move, by
    least squares that are weighted anew each round (Schlossmacher, An Iterative Technique for Absolute Deviations Curve
    Fitting, JASA 1973). No cost is negative: with five of them every set of those that are not 0 can be tried, and the
    best one whose unconstrained solution is nowhere negative is the exact answer. (The active sets of Lawson & Hanson,
    Solving Least Squares Problems, 1974, chapter 23, are a search for it.)

    Raises ConfigError when there are fewer than LEAST_STEPS steps.
    """
    if len(samples) < LEAST_STEPS:
        raise ConfigError(f"a step model needs at least {LEAST_STEPS} steps to be fitted to, got {len(samples)}")
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
    for _, began, ended in samples:
        since = max(began, before) if before < ended else began
        yield max(ended - since, 1e-9)
        before = ended


def _spread(errors: Float64) -> float:
    """Robust standard deviation: 1.4826 times the median distance from the median."""
    return float(1.4826 * np.median(np.abs(errors - np.median(errors))))


def _least_squares(work: Float64, seconds: Float64, weights: Float64) -> Float64:
    """Return float64 [5], the costs that make the sum of (weights * (work @ costs - seconds))² least, none below 0.

    One of the first two is always among them: a step takes some time.
    """
    rows, wanted = work * weights[:, None], seconds * weights
    scale = np.maximum(np.abs(rows).max(axis=0), 1e-300)
    square, right = (rows / scale).T @ (rows / scale), (rows / scale).T @ wanted
    best, least = np.zeros(len(COSTS)), float("inf")
    for count in range(1, len(COSTS) + 1):
        for columns in map(list, combinations(range(len(COSTS)), count)):
            if not {0, 1} & set(columns):
                continue
            found = np.linalg.lstsq(square[np.ix_(columns, columns)], right[columns], rcond=1e-12)[0]
            left = float(found @ square[np.ix_(columns, columns)] @ found - 2 * found @ right[columns])
            if found.min() >= 0 and left < least - 1e-12 * abs(left):
                least, best = left, np.zeros(len(COSTS))
                best[columns] = found
    costs: Float64 = best / scale
    return costs


# -- files ---------------------------------------------------------------------------------------------------------


def read_samples(path: str) -> list[StepSample]:
    """Read the steps of a run from a trace or from lines of StepStats. Raises ConfigError when there are none."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    found = []
    for number, line in enumerate(lines, start=1):
        text = line.strip().rstrip(b",")
        if text in (b"", b"[", b"]"):
            continue
        try:
            if (each := _sample(text)) is not None:
                found.append(each)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} line {number} is neither a trace event nor a step: {error}") from None
    if not found:
        raise ConfigError(f"{path} has no steps")
    return found


class _Event(msgspec.Struct):
    """An event of a trace, as far as every kind has it."""

    ph: str
    name: str = ""
    cat: str = ""


class _StepArguments(msgspec.Struct, rename=lambda name: name.replace("_", " ")):
    rows: int
    prefill_tokens: int
    context_tokens: int
    prefill_pairs: int


class _StepEvent(msgspec.Struct):
    """The event of a step; times in microseconds."""

    ts: float
    dur: float
    args: _StepArguments


def _sample(text: bytes) -> StepSample | None:
    if "ph" not in msgspec.json.decode(text, type=dict[str, msgspec.Raw]):
        return sample(msgspec.json.decode(text, type=StepStats))
    event = msgspec.json.decode(text, type=_Event)
    if event.cat != "step" or not event.name.startswith("step "):
        return None
    step = msgspec.json.decode(text, type=_StepEvent)
    has, began = step.args, step.ts / 1e6
    work = StepWork(1, has.rows, has.prefill_tokens, has.context_tokens, has.prefill_pairs)
    return StepSample(work, began, began + step.dur / 1e6)
