"""`chairlift bench structured`: what it costs that half of a batch is under schemas."""

import argparse
from typing import cast

from chairlift.bench.micro.structured_output_cost import measure
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
    """Measure both batches in turns; returns the exit code: 0, or 1 when a request failed.

    Raises ConfigError and ModelError for bad input.
    """
    console = Console(quiet=arguments.quiet)
    for name, least in (("requests", 2), ("output_tokens", 1), ("repeat", 1)):
        if (value := getattr(arguments, name)) < least:
            raise ConfigError(f"{name} must be at least {least}, got {value}")
    check_outputs({"--json": arguments.json})
    engine = settings.given(settings.ENGINE, arguments, settings.environment())
    prepared = prepare(arguments.model, cast("Options", engine))
    source = environment.source()
    if arguments.model is None:
        console.say(no_model_given())
    found = measure(
        prepared, requests=arguments.requests, output_tokens=arguments.output_tokens,
        repeat=arguments.repeat, seed=arguments.seed, note=console.say,
    )  # fmt: skip
    turns = ", ".join(f"{ratio:.3f}" for ratio in found["by_turn"])
    print(f"throughput with half of {arguments.requests} requests under schemas: {found['ratio']:.3f} of without")
    print(f"by turn: {turns}")
    if arguments.json is not None:
        found |= {"model": environment.model_shape(arguments.model), "options": environment.shown_options(engine)}
        report.write(arguments.json, report.with_environment(KIND, found, source, arguments.words))
    failed = sum(each["requests"]["failed"] for each in (*found["plain"], *found["structured"]))
    if failed:
        console.complain(f"{failed} requests failed")
    for fault in found["integrity_errors"]:
        console.complain(f"the engine's ledger is wrong: {fault}")
    return 1 if failed or found["integrity_errors"] else 0
