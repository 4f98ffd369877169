"""`python -m structured_cost [MODEL]`: measures the cost of token masks.

A batch without structured output alternates with the same batch where every other request has a JSON Schema. Without
MODEL the embedded demo model runs, whose small vocabulary makes masks cheap. The options of the engine are those of
`chairlift bench offline`.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import cast

from chairlift.bench.report import environment, model_size_fields, report, report_output
from chairlift.bench.report.redaction import shown_options
from chairlift.cli.arg_parser import Parser, UsageError
from chairlift.cli.settings import settings
from chairlift.cli.settings.foreign_flag_actions import merge_model
from chairlift.cli.settings.resolve_settings import process_environment, resolve_group
from chairlift.cli.shared_arguments import add_model, add_settings
from chairlift.core.errors import ConfigError, ModelError
from chairlift.llm.build import prepare
from chairlift.llm.builtin_models import no_model_given
from chairlift.llm.options import Options
from structured_cost.structured_batch_comparison import measure

LEAST_VALUES = {"requests": 2, "output_tokens": 1, "repeat": 1}


def main(words: Sequence[str]) -> int:
    """Measure both batches alternately; returns the exit code: 0, 1 when a request failed, or 2 for invalid input."""
    try:
        return _run(_parse(words), words)
    except (UsageError, argparse.ArgumentTypeError, ConfigError, ModelError) as error:
        _print_error(f"structured_cost: {error}")
        return 2


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="structured_cost", description=__doc__)
    add_model(parser)
    parser.add_argument("--requests", type=int, default=32, help="requests in a batch (%(default)s)")
    parser.add_argument("--output-tokens", type=int, default=128, help="output tokens of each request (%(default)s)")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each batch (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the requests (%(default)s)")
    parser.add_argument("--json", help="file to write the report to")
    add_settings(parser, "engine", settings.ENGINE)
    arguments = parser.parse_args(words)
    merge_model(arguments)
    for name, least in LEAST_VALUES.items():
        if (value := getattr(arguments, name)) < least:
            parser.error(f"--{name.replace('_', '-')} must be at least {least}, got {value}")
    return arguments


def _run(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    engine = resolve_group(settings.ENGINE, arguments, process_environment())
    prepared = prepare(arguments.model, cast("Options", engine))
    source = environment.source()
    if arguments.model is None:
        report_output.print_line(no_model_given())
    results = measure(
        prepared, requests=arguments.requests, output_tokens=arguments.output_tokens,
        repeat=arguments.repeat, seed=arguments.seed, note=report_output.print_line,
    )  # fmt: skip
    results |= {"model": model_size_fields.model_shape(arguments.model), "options": shown_options(engine)}
    document = report.with_environment("chairlift structured cost", results, source, ["structured_cost", *words])
    lines = [
        f"throughput with schemas for half of {arguments.requests} requests: {results['ratio']:.3f} of that without",
        f"ratio of each run: {', '.join(f'{ratio:.3f}' for ratio in results['by_turn'])}",
    ]
    report_output.tell(lines, arguments.json, document, report_output.print_line)
    failed = sum(each["requests"]["failed"] for each in (*results["plain"], *results["structured"]))
    if failed:
        _print_error(f"{failed} requests failed")
    for error in results["integrity_errors"]:
        _print_error(f"integrity error of the engine: {error}")
    return 1 if failed or results["integrity_errors"] else 0


def _print_error(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
