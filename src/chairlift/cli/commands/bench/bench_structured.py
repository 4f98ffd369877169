"""`chairlift bench structured`: measures the cost of structured output for half of a batch."""

import argparse
from typing import cast

from chairlift.bench.micro.structured_batch_comparison import measure
from chairlift.bench.report import environment, report
from chairlift.cli.console import Console
from chairlift.cli.result_writer import check_outputs
from chairlift.cli.settings import settings
from chairlift.core.errors import ConfigError
from chairlift.llm.build import prepare
from chairlift.llm.model_names import no_model_given
from chairlift.llm.options import Options

KIND = "chairlift bench structured"


def run(arguments: argparse.Namespace) -> int:
    """Measure both batches alternately; returns the exit code: 0, or 1 when a request failed.

    Raises ConfigError and ModelError for invalid input.
    """
    console = Console(quiet=arguments.quiet)
    for name, least in (("requests", 2), ("output_tokens", 1), ("repeat", 1)):
        if (value := getattr(arguments, name)) < least:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least {least}, got {value}")
    check_outputs({"--json": arguments.json})
    engine = settings.resolve_group(settings.ENGINE, arguments, settings.process_environment())
    prepared = prepare(arguments.model, cast("Options", engine))
    source = environment.source()
    if arguments.model is None:
        console.print_line(no_model_given())
    results = measure(
        prepared, requests=arguments.requests, output_tokens=arguments.output_tokens,
        repeat=arguments.repeat, seed=arguments.seed, note=console.print_line,
    )  # fmt: skip
    ratios = ", ".join(f"{ratio:.3f}" for ratio in results["by_turn"])
    print(f"throughput with schemas for half of {arguments.requests} requests: {results['ratio']:.3f} of that without")
    print(f"ratio of each run: {ratios}")
    if arguments.json is not None:
        results |= {"model": environment.model_shape(arguments.model), "options": environment.shown_options(engine)}
        report.write(arguments.json, report.with_environment(KIND, results, source, arguments.argv))
    failed = sum(each["requests"]["failed"] for each in (*results["plain"], *results["structured"]))
    if failed:
        console.print_error(f"{failed} requests failed")
    for error in results["integrity_errors"]:
        console.print_error(f"integrity error of the engine: {error}")
    return 1 if failed or results["integrity_errors"] else 0
