"""Compare routing policies on simulated replicas: `python -m fleet_simulation --policy prefix round_robin`."""

import argparse
import sys

from chairlift.router.policies.registry import POLICY_NAMES
from fleet_simulation.conversations import LOADS
from fleet_simulation.simulation import FleetOptions, simulate_fleet


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fleet_simulation", description=__doc__)
    parser.add_argument("--policy", nargs="+", choices=POLICY_NAMES, default=["prefix", "round_robin"])
    parser.add_argument("--load", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--replicas", type=int, default=8, help="number of replicas")
    parser.add_argument("--seed", type=int, default=0, help="seed of load and policy")
    options = parser.parse_args(arguments)
    lines = [f"{'load':10} {'policy':18} {'hit rate':>8} {'TTFT mean':>10} {'p99':>8} {'most/mean':>9}"]
    for load in options.load:
        for policy in options.policy:
            result = simulate_fleet(
                LOADS[load], FleetOptions(policy=policy, num_replicas=options.replicas, seed=options.seed)
            )
            spread = max(result.num_requests.values()) * options.replicas / result.num_requests.total()
            lines.append(
                f"{load:10} {policy:18} {result.hit_rate:8.1%} {result.mean_ttft:8.3f} s {result.p99_ttft:6.2f} s "
                f"{spread:9.2f}"
            )
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
