"""with_poisson_arrivals: a workload whose requests arrive at random times, at a rate."""

import math
from dataclasses import replace
from random import Random

from chairlift.bench.workload.workload import MAX_SECONDS, Workload
from chairlift.core.errors import ConfigError


def with_poisson_arrivals(workload: Workload, rate: float) -> Workload:
    """Return the workload with Poisson arrivals of `rate` requests per second, in the same order.

    Raises ConfigError when the rate is not a positive number, and when the last would arrive after MAX_SECONDS.
    """
    if not 0 < rate < math.inf:
        raise ConfigError(f"rate must be a positive number of requests per second, got {rate:g}", option="rate")
    rng, at, items = Random(f"arrivals {workload.seed}"), 0.0, []
    for item in workload.items:
        at -= math.log1p(-rng.random()) / rate
        items.append(replace(item, at=at))
    if at > MAX_SECONDS:
        raise ConfigError(
            f"at a rate of {rate:g} per second the last request arrives after {at:.3g} seconds", option="rate"
        )
    return replace(workload, items=tuple(items))
