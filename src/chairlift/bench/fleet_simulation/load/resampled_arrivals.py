"""sample_arrivals: draws requests from others, at a rate, by a seed."""

from random import Random

import numpy as np

from chairlift.bench.fleet_simulation.load.arrivals import Arrivals


def sample_arrivals(arrivals: Arrivals, rate: float, count: int, seed: int) -> Arrivals:
    """Return `count` requests with lengths of the given ones, at a constant mean rate."""
    rng = Random(f"capacity {seed}")
    places = np.array([rng.randrange(len(arrivals.at)) for _ in range(count)])
    at = np.cumsum([rng.expovariate(rate) for _ in range(count)])
    return Arrivals(
        name="poisson", at=at, prompt_tokens=arrivals.prompt_tokens[places],
        output_tokens=arrivals.output_tokens[places], seconds=count / rate,
    )  # fmt: skip
