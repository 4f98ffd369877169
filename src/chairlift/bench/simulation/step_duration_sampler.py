"""StepDurationSampler: draws the durations of steps from a step time model and a seed."""

import numpy as np

from chairlift.bench.simulation.sim_step_model import SimStepModel, StepWork
from chairlift.engine.step_plan import StepPlan


class StepDurationSampler:
    """Returns the duration of each step of a run, with noise from a seed."""

    def __init__(self, times: SimStepModel, seed: int) -> None:
        self._times = times
        self._random = np.random.Generator(np.random.PCG64(seed % 2**64))

    def __call__(self, plan: StepPlan) -> float:
        """Return the seconds of the next step, with noise."""
        seconds, noise = self._times.seconds(StepWork.of_plan(plan)), self._times.noise
        if not noise:
            return seconds
        return seconds * float(np.exp(noise * self._random.standard_normal() - noise**2 / 2))
