"""`chairlift bench scenarios`: what the policies promise, measured in the simulator with fixed seeds."""

import argparse

from chairlift.bench.report import environment, report
from chairlift.bench.simulation.scenarios import SCENARIOS
from chairlift.cli.console import Console
from chairlift.cli.result_writer import check_outputs
from chairlift.core.errors import ConfigError

KIND = "chairlift bench scenarios"


def run(arguments: argparse.Namespace) -> int:
    """Run them one after another; returns the exit code. Raises ConfigError for bad input."""
    console = Console(quiet=arguments.quiet)
    names = arguments.names or list(SCENARIOS)
    if unknown := [name for name in names if name not in SCENARIOS]:
        raise ConfigError(f"unknown scenario {unknown[0]!r}; there is {', '.join(SCENARIOS)}")
    check_outputs({"--json": arguments.json})
    source = environment.source()
    found = {}
    for name in names:
        console.say(f"running {name}")
        found[name] = SCENARIOS[name]()
        for arm, numbers in found[name].items():
            print(f"{name} · {arm}: " + ", ".join(f"{what} {value:.4g}" for what, value in numbers.items()))
    if arguments.json is not None:
        report.write(
            arguments.json, report.with_environment(KIND, {"scenarios": found}, source, arguments.words, of_host=False)
        )
    return 0
