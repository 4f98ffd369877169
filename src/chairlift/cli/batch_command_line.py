"""add_run_batch: the arguments of `chairlift run-batch`."""

import argparse

from chairlift.cli import help_texts as texts
from chairlift.cli.arg_parser import Parser
from chairlift.cli.settings import settings, value_parsers
from chairlift.cli.shared_arguments import Subcommands, add_command, add_model, add_settings, add_verbosity

DEFAULT_CONCURRENT = 512
"""Open requests at most: more than run at once, so that the engine's queue is never empty."""

DEFAULT_RETRIES = 10


def add_run_batch(subcommands: "Subcommands[Parser]") -> None:
    """Declare the command."""
    parser = add_command(
        subcommands, "run_batch", name="run-batch", help="run a batch file of OpenAI's format",
        description=texts.RUN_BATCH_HELP,
        usage="chairlift run-batch [MODEL | --url URL] --input FILE.jsonl --output FILE.jsonl [options]",
    )  # fmt: skip
    add_model(parser)
    parser.add_argument("-i", "--input", metavar="FILE.jsonl", help="the batch file, one request per line")
    parser.add_argument(
        "-o", "--output", metavar="FILE.jsonl", help="the file of responses; a run goes on where the file ends"
    )
    parser.add_argument(
        "--url", metavar="URL", help="URL of a running server or router (default: load MODEL in this command)"
    )
    parser.add_argument(
        "--served-model-name", nargs="+", metavar="NAME",
        help="names of the model in the requests (default: its hub id or folder)",
    )  # fmt: skip
    parser.add_argument(
        "--max-concurrent", type=_positive, metavar="N", default=DEFAULT_CONCURRENT,
        help=f"maximum number of open requests (default: {DEFAULT_CONCURRENT})",
    )  # fmt: skip
    parser.add_argument(
        "--max-retries", type=_not_negative, metavar="N", default=DEFAULT_RETRIES,
        help=f"how often a request is sent again after no response, 408, 429 or 5xx (default: {DEFAULT_RETRIES})",
    )  # fmt: skip
    add_verbosity(parser)
    add_settings(parser, "engine", settings.ENGINE)
    add_settings(parser, "logging", settings.LOGGING)


def _positive(text: str) -> int:
    return _at_least(1, text)


def _not_negative(text: str) -> int:
    return _at_least(0, text)


def _at_least(least: int, text: str) -> int:
    number = value_parsers.integer(text)
    if number < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}, got {number}")
    return number
