"""`chairlift bench scenarios`: measures the guarantees of the scheduling policies."""

import argparse

from chairlift.bench.report import environment, report
from chairlift.bench.simulation.scenarios import SCENARIOS
from chairlift.cli.console import Console
from chairlift.cli.result_writer import check_outputs
from chairlift.core.errors import ConfigError

KIND = "chairlift bench scenarios"


def run(arguments: argparse.Namespace) -> int:
    """Run the scenarios one after another; returns the exit code.

    Raises ConfigError for invalid input.
    """
    console = Console(quiet=arguments.quiet)
    names = arguments.names or list(SCENARIOS)
    if unknown := [name for name in names if name not in SCENARIOS]:
        raise ConfigError(f"unknown scenario {unknown[0]!r}; available are {', '.join(SCENARIOS)}")
    check_outputs({"--json": arguments.json})
    source = environment.source()
    results = {}
    for name in names:
        console.print_line(f"running {name}")
        results[name] = SCENARIOS[name]()
        for case, numbers in results[name].items():
            print(f"{name} · {case}: " + ", ".join(f"{measure} {value:.4g}" for measure, value in numbers.items()))
    if arguments.json is not None:
        report.write(
            arguments.json, report.with_environment(KIND, {"scenarios": results}, source, arguments.argv, of_host=False)
        )
    return 0
