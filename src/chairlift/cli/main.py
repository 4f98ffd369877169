"""The command line: verbs, options and exit codes. Nothing heavy is imported before a verb runs.

Exit codes: 0 done · 1 a request or the engine failed · 2 bad input, in one sentence · 130 interrupted · 141 no reader.
"""

import argparse
import difflib
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from chairlift import __version__
from chairlift.cli import settings

FAILED, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141

GENERATE_HELP = """Generate text with a model: one prompt, streamed, or a file of prompts as one batch.

  chairlift generate MODEL --prompt "The lift is"
  chairlift generate MODEL --prompts prompts.jsonl --output answers.jsonl

A line of prompts.jsonl is {"prompt": "text"}, {"prompt": [1, 2, 3]} or {"messages": [...]}, and may have an "id" and
sampling options by name ("max_tokens": 9). Results are JSON lines in the same order. Without MODEL a tiny random model
makes noise."""
GENERATE_END = """Sampling and engine options can also be set in the environment: --max-tokens is CHAIRLIFT_MAX_TOKENS.
The command line wins."""


class BadUsage(Exception):
    """The command line cannot be understood."""


class Layout(argparse.RawDescriptionHelpFormatter):
    """Room for the longest flag, so that most options take one line."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=120)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, by raising BadUsage."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        raise BadUsage(message.removeprefix("argument "))


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (the process's own when None); returns the exit code."""
    verbose = False
    _open_what_is_closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")
    try:
        arguments = _parse(sys.argv[1:] if argv is None else argv)
        verbose = arguments.verbose
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except BadUsage as error:
        return _say(f"{error}", BAD_INPUT)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # What is still buffered must not fail again when Python leaves.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        return _explain(error, verbose)


def _open_what_is_closed() -> None:
    """Put an empty stream where the caller closed one: else another file gets its number, and what is said there."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # lives as long as the process


def _say(sentence: str, code: int) -> int:
    print(f"chairlift: {' '.join(sentence.split())}", file=sys.stderr, flush=True)
    return code


def _explain(error: Exception, verbose: bool) -> int:
    """Turn an error into a sentence and its exit code; with -v its traceback comes first."""
    from chairlift.core.errors import ChairliftError, ConfigError, InvalidRequest, ModelError

    if verbose:
        import traceback

        traceback.print_exception(error)
    if isinstance(error, ConfigError | ModelError | InvalidRequest):
        return _say(error.message, BAD_INPUT)
    if isinstance(error, ChairliftError):
        return _say(error.message, FAILED)
    if isinstance(error, OSError) and error.strerror:
        return _say(error.strerror + (f": {error.filename}" if error.filename else ""), FAILED)
    hint = "" if verbose else " (-v shows where)"
    return _say(f"{type(error).__name__}: {error}{hint}", FAILED)


def _run(arguments: argparse.Namespace) -> int:
    from chairlift.cli import generate
    from chairlift.cli.console import configure_logging

    configure_logging(verbose=arguments.verbose, quiet=arguments.quiet)
    return generate.run(arguments)


# -- the parser --------------------------------------------------------------------------------------------------------


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser, generate = build_parser()
    if not argv:
        parser.print_help(sys.stderr)
        raise BadUsage("no command is given; there is generate")
    if not argv[0].startswith("-") and argv[0] != "generate":
        raise BadUsage(f"unknown command {argv[0]!r}; there is generate")
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        _refuse(next((word for word in unknown if word.startswith("-")), unknown[0]), generate)
    return arguments


def _refuse(word: str, generate: Parser) -> NoReturn:
    if not word.startswith("-"):
        raise BadUsage(f"there is one MODEL, so what is {word!r}? A prompt follows --prompt")
    name = word.partition("=")[0]
    near = difflib.get_close_matches(name, generate._option_string_actions, n=1)
    raise BadUsage(f"unknown option {name}" + (f", did you mean {near[0]}?" if near else ""))


def build_parser() -> tuple[Parser, Parser]:
    """Return the parser, and that of `generate`."""
    parser = Parser(prog="chairlift", description="Chairlift runs large language models by continuous batching.",
                    allow_abbrev=False)  # fmt: skip
    parser.add_argument("--version", action="version", version=f"chairlift {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND", parser_class=Parser)
    generate = verbs.add_parser(
        "generate", help="generate text from one prompt or a file of prompts", description=GENERATE_HELP,
        epilog=GENERATE_END, formatter_class=Layout, allow_abbrev=False,
        usage="chairlift generate [MODEL] [--prompt TEXT | --prompts FILE.jsonl] [--output FILE.jsonl] [options]",
    )  # fmt: skip
    generate.add_argument("model", nargs="?", metavar="MODEL", help="a Hugging Face model folder or hub id")
    generate.add_argument("--prompt", metavar="TEXT", help="one prompt; - reads it from standard input")
    generate.add_argument("--prompts", metavar="FILE.jsonl", help="a file of prompts; - is standard input")
    generate.add_argument("--output", metavar="FILE.jsonl", help="write the results there as JSON lines")
    generate.add_argument("--json", action="store_true", help="JSON on standard output, one object for a prompt")
    generate.add_argument("--chat", action="store_true", help="put prompts into the model's chat template")
    generate.add_argument("--timeout", type=settings.number, metavar="SECONDS", help="for each request")
    loud = generate.add_mutually_exclusive_group()
    loud.add_argument("-v", "--verbose", action="store_true", help="log everything; tracebacks")
    loud.add_argument("-q", "--quiet", action="store_true", help="errors alone on standard error")
    for title, group in (("sampling", settings.SAMPLING), ("engine", settings.ENGINE)):
        section = generate.add_argument_group(title)
        for setting in group:
            setting.add_to(section)
    return parser, generate
