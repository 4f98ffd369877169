"""read_samples: reads the steps of a real run from its trace; StepSample is one of them."""

from pathlib import Path
from typing import NamedTuple

import msgspec

from chairlift.bench.simulation.sim_step_model import StepWork
from chairlift.core.errors import ConfigError
from chairlift.engine.step_stats import StepStats


class StepSample(NamedTuple):
    """One step of a real run.

    Attributes:
        work: amount of work in the step.
        started_at: start in seconds, by any clock.
        ended: end in seconds, by the same clock.
    """

    work: StepWork
    started_at: float
    ended: float


def sample(stats: StepStats) -> StepSample:
    """Return the sample of a step's stats."""
    work = StepWork(1, stats.num_sequences, stats.num_prefill_tokens, stats.context_tokens, stats.prefill_pairs)
    return StepSample(work, stats.started_ms / 1e3, stats.ended_ms / 1e3)


def read_samples(path: str) -> list[StepSample]:
    """Read the steps of a run from a trace or from lines of StepStats.

    Raises ConfigError when there are none.
    """
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    selected = []
    for number, line in enumerate(lines, start=1):
        text = line.strip().rstrip(b",")
        if text in (b"", b"[", b"]"):
            continue
        try:
            if (each := _sample(text)) is not None:
                selected.append(each)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} line {number} is neither a trace event nor a step: {error}") from None
    if not selected:
        raise ConfigError(f"{path} has no steps")
    return selected


class _Event(msgspec.Struct):
    """The fields that every event of a trace has."""

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
    arguments, started_at = step.args, step.ts / 1e6
    work = StepWork(1, arguments.rows, arguments.prefill_tokens, arguments.context_tokens, arguments.prefill_pairs)
    return StepSample(work, started_at, started_at + step.dur / 1e6)
