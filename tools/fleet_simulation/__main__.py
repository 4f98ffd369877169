"""Compare routing policies on simulated replicas: `python -m fleet_simulation --policy prefix round_robin`."""

import argparse
import sys

from chairlift.router.policies.registry import POLICY_NAMES
from fleet_simulation.conversations import DEFAULT_CACHE_TOKENS, LOADS
from fleet_simulation.simulation import FleetOptions, simulate_fleet


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fleet_simulation", description=__doc__)
    parser.add_argument("--policy", nargs="+", choices=POLICY_NAMES, default=["prefix", "round_robin"])
    parser.add_argument("--load", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--replicas", type=int, default=8, help="number of replicas")
    parser.add_argument("--cache-pressure", type=float, default=None,
                        help="tokens that later prompts repeat, as a multiple of the cache of a replica (default: that "
                             "of the load: 0.6 for shared, 4 for many_sessions, 1 for saturated)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="seed of load and policy")
    options = parser.parse_args(arguments)
    lines = [f"{'load':14} {'pressure':>8} {'policy':18} {'hit rate':>8} {'TTFT mean':>10} {'p99':>8} {'most/mean':>9}"]
    for name in options.load:
        load = LOADS[name]
        if options.cache_pressure is not None:
            load = load.with_cache_pressure(options.cache_pressure, DEFAULT_CACHE_TOKENS)
        pressure = load.working_set_tokens / DEFAULT_CACHE_TOKENS
        for policy in options.policy:
            result = simulate_fleet(load, FleetOptions(policy=policy, num_replicas=options.replicas, seed=options.seed))
            spread = max(result.num_requests.values()) * options.replicas / result.num_requests.total()
            lines.append(
                f"{name:14} {pressure:8.1f} {policy:18} {result.hit_rate:8.1%} {result.mean_ttft:8.3f} s "
                f"{result.p99_ttft:6.2f} s {spread:9.2f}"
            )
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
