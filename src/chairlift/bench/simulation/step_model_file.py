"""read_step_model: reads a step time model from a file, or fits one to the steps of a run in it.

The run is a trace that `--profile FILE` wrote, or StepStats as JSON lines:

    chairlift bench offline MODEL --profile trace.json
    chairlift bench simulate --fit trace.json --save-step-times model.json
"""

from dataclasses import fields, replace
from pathlib import Path

import msgspec

from chairlift.bench.simulation.sim_step_model import SimStepModel, read_model
from chairlift.bench.simulation.step_fit import fit
from chairlift.bench.simulation.step_samples import read_samples
from chairlift.core.errors import ConfigError


def read_step_model(path: str) -> SimStepModel:
    """Return the step times in a file, without noise.

    The file holds step times (`bench simulate --save-step-times`), or measured steps to which they are fitted: a trace
    (`--profile`), or StepStats as JSON lines. Raises ConfigError for another file.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}", option="step_model") from None
    if _has_step_times(content):
        model = read_model(path)
        return replace(model, noise=0.0, origin=model.origin or f"step times of {Path(path).name}")
    fitted = fit(read_samples(path))
    origin = f"fitted to {fitted.steps} steps; error: median {fitted.median_error:.1%}, p90 {fitted.p90_error:.1%}"
    return replace(fitted.model, noise=0.0, origin=origin)


def _has_step_times(content: bytes) -> bool:
    """Return whether a file is one object with fields of SimStepModel only."""
    try:
        names = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return "step" in names and set(names) <= {field.name for field in fields(SimStepModel)}
