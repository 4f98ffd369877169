"""draw_arrivals: requests at random times, drawn from a seed.

A rate curve gives the requests per second over time; the arrivals are a Poisson process with that rate.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from chairlift.bench.fleet_simulation.load.arrivals import Arrivals, Floats, Ints
from chairlift.core.errors import ConfigError

PEAK_RATIO = 8.0
"""Rate at the peak of a diurnal curve or in a burst, as a multiple of the lowest rate."""

BURST_SHARE = 0.1
"""Share of the time that bursts take."""

MAX_LENGTH_RATIO = 8.0
"""Longest prompt or output, as a multiple of the mean."""

LENGTH_SPREAD = 0.8
"""Standard deviation of the logarithm of a length."""

CURVE_POINTS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalOptions:
    """Which requests arrive. Raises ConfigError for a number that is not positive.

    Attributes:
        kind: a name of RATE_CURVES.
        rate: mean requests per second.
        requests: expected number of requests.
        period_seconds: length of a day, or mean time between two bursts.
        prompt_tokens: mean length of a prompt.
        output_tokens: mean length of an output.
        seed: seed of all of it.
    """

    kind: str
    rate: float
    requests: int
    period_seconds: float
    prompt_tokens: int = 512
    output_tokens: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rate", "requests", "period_seconds", "prompt_tokens", "output_tokens"):
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise ConfigError(f"{name} of the simulated load must be positive, got {value}", option=name)


RateCurve = Callable[[Floats, float, np.random.Generator], Floats]
"""Relative rate at each time, for a period and random numbers."""


def _poisson(times: Floats, period: float, rng: np.random.Generator) -> Floats:
    return np.ones_like(times)


def _diurnal(times: Floats, period: float, rng: np.random.Generator) -> Floats:
    """Return a smooth day that begins at its lowest rate and has its peak in the middle."""
    return 1 + (PEAK_RATIO - 1) * ((1 - np.cos(2 * np.pi * times / period)) / 2) ** 2


def _bursts(times: Floats, period: float, rng: np.random.Generator) -> Floats:
    """Return a constant rate with bursts at random times: exponential pauses, and bursts of a fixed length."""
    rates, at = np.ones_like(times), 0.0
    while (at := at + rng.exponential(period * (1 - BURST_SHARE))) < times[-1]:
        rates[(times >= at) & (times < at + period * BURST_SHARE)] = PEAK_RATIO
        at += period * BURST_SHARE
    return rates


RATE_CURVES: dict[str, RateCurve] = {"poisson": _poisson, "bursts": _bursts, "diurnal": _diurnal}


def draw_arrivals(options: ArrivalOptions) -> Arrivals:
    """Return the requests of the options; equal options give equal requests."""
    rng = np.random.Generator(np.random.PCG64(options.seed % 2**64))
    seconds = options.requests / options.rate
    times = np.linspace(0, seconds, CURVE_POINTS + 1)
    curve = RATE_CURVES[options.kind](times, options.period_seconds, rng)
    expected = np.concatenate([[0.0], np.cumsum((curve[1:] + curve[:-1]) / 2)])
    expected *= options.requests / expected[-1]
    most = options.requests + 10 * math.ceil(math.sqrt(options.requests)) + 10
    places = np.cumsum(rng.exponential(size=most))
    at = np.interp(places[places < expected[-1]], expected, times)
    return Arrivals(
        name=options.kind, at=at, prompt_tokens=_lengths(rng, options.prompt_tokens, len(at)),
        output_tokens=_lengths(rng, options.output_tokens, len(at)), seconds=seconds,
    )  # fmt: skip


def _lengths(rng: np.random.Generator, mean: int, count: int) -> Ints:
    """Return log-normal lengths of about this mean."""
    drawn = mean * np.exp(LENGTH_SPREAD * rng.standard_normal(count) - LENGTH_SPREAD**2 / 2)
    lengths: Ints = np.clip(np.rint(drawn), 1, MAX_LENGTH_RATIO * mean).astype(np.int64)
    return lengths
