"""measure_capacity: the rate that one replica of a simulated fleet can serve."""

from dataclasses import replace

from chairlift.bench.fleet_simulation.fleet_run import simulate_fleet
from chairlift.bench.fleet_simulation.load.arrivals import ArrivalSource
from chairlift.bench.fleet_simulation.load.resampled_arrivals import sample_arrivals
from chairlift.bench.fleet_simulation.scaling_rule_comparison import FleetLoad
from chairlift.bench.fleet_simulation.scaling_rules import StaticRule
from chairlift.core.errors import ConfigError

CAPACITY_REQUESTS, CAPACITY_STEPS = 400, 6
"""Requests of a simulation of one replica, and simulations that find its capacity."""

MIN_CAPACITY, MAX_CAPACITY = 1e-3, 1e5
"""Requests per second between which the capacity of a replica is searched for."""


def measure_capacity(load: FleetLoad) -> float:
    """Return the highest rate of requests per second at which one replica reaches the goal, within 2 %."""
    options = replace(load.options, initial_replicas=1)

    def reaches(rate: float) -> bool:
        arrivals = sample_arrivals(load.arrivals, rate, CAPACITY_REQUESTS, options.seed)
        result = simulate_fleet(ArrivalSource(arrivals), StaticRule(1), options, arrivals.seconds)
        return result.slo_attainment >= load.slo_goal

    low = 1.0
    while not reaches(low):
        low /= 2
        if low < MIN_CAPACITY:
            message = f"{load.slo_goal:.1%} of the requests do not meet the SLO on a replica alone; raise its limits"
            raise ConfigError(message, option="slo")
    while low < MAX_CAPACITY and reaches(low * 2):
        low *= 2
    for step in range(1, CAPACITY_STEPS + 1):
        higher = low * (1 + 2.0**-step)
        low = higher if reaches(higher) else low
    return low
