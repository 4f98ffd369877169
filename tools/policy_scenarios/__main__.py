"""`python -m policy_scenarios [NAME ..]`: measures the guarantees of the scheduling policies in the simulator.

Seeds are fixed. The scenarios are fairness, priority ageing, prefix cache hits, target inter-token latency, a small KV
cache, and paged against preallocated memory.
"""

import argparse
import sys
from collections.abc import Sequence

from chairlift.bench.report import environment, report, report_output
from policy_scenarios.scheduling_scenarios import SCENARIOS


def main(words: Sequence[str]) -> int:
    """Run the scenarios one after another; returns the exit code."""
    parser = argparse.ArgumentParser(prog="policy_scenarios", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenario to run (default: all)")
    parser.add_argument("--json", help="file to write the report to")
    options = parser.parse_args(words)
    names = options.names or list(SCENARIOS)
    if unknown := [name for name in names if name not in SCENARIOS]:
        parser.error(f"unknown scenario {unknown[0]!r}; available are {', '.join(SCENARIOS)}")
    source = environment.source()
    results = {}
    for name in names:
        results[name] = SCENARIOS[name]()
        for case, numbers in results[name].items():
            figures = ", ".join(f"{measure} {value:.4g}" for measure, value in numbers.items())
            report_output.print_line(f"{name} · {case}: {figures}")
    if options.json is not None:
        command = ["policy_scenarios", *words]
        report_output.write(
            options.json,
            report.with_environment(
                "chairlift policy scenarios", {"scenarios": results}, source, command, of_host=False
            ),
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
