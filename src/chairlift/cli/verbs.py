"""Verbs: the options of every command, declared without importing what runs them.

A verb's `run(arguments) -> exit code` lives in the module that its parser names, and is imported when it is asked for.
"""

import argparse
from collections.abc import Iterable, Sequence

from chairlift import __version__
from chairlift.cli import settings
from chairlift.cli.parser import BadUsage, Parser

Verbs = argparse._SubParsersAction  # the only name argparse has for what add_subparsers() returns

GENERATE_HELP = """Generate text with a model: one prompt, streamed, or a file of prompts as one batch.

  chairlift generate MODEL --prompt "The lift is"
  chairlift generate MODEL --prompts prompts.jsonl --output answers.jsonl

A line of prompts.jsonl is {"prompt": "text"}, {"prompt": [1, 2, 3]} or {"messages": [...]}, and may have an "id" and
sampling options by name ("max_tokens": 9). Results are JSON lines in the same order. Without MODEL a tiny random model
makes noise."""
GENERATE_END = """Sampling and engine options can also be set in the environment: --max-tokens is CHAIRLIFT_MAX_TOKENS.
The command line wins."""


def build_parser() -> Parser:
    """Return the parser of the whole command line.

    What it returns has `module`, whose run() does the work, and `parser`, the verb's own.
    """
    parser = Parser(prog="chairlift", description="Chairlift runs large language models by continuous batching.")
    parser.add_argument("--version", action="version", version=f"chairlift {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND", parser_class=Parser)
    _generate(verbs)
    return parser


def check_verb(parser: Parser, words: Sequence[str]) -> None:
    """Raise BadUsage when the first words name no command; argparse would list choices instead of a sentence."""
    names: list[str] = []
    for word in (*words, ""):
        inner = next((act for act in parser._actions if isinstance(act, argparse._SubParsersAction)), None)
        if inner is None or word.startswith("-"):
            return
        there = ", ".join(inner.choices)
        what = " ".join(["", *names])
        if not word:
            raise BadUsage(f"no command is given; there is{what} {there}" if not names else f"{what[1:]} what? {there}")
        if word not in inner.choices:
            raise BadUsage(f"unknown command {' '.join([*names, word])!r}; there is {there}")
        names.append(word)
        parser = inner.choices[word]


def add_loudness(parser: Parser) -> None:
    """Declare -v and -q, which every verb has."""
    loud = parser.add_mutually_exclusive_group()
    loud.add_argument("-v", "--verbose", action="store_true", help="log everything; tracebacks")
    loud.add_argument("-q", "--quiet", action="store_true", help="errors alone on standard error")


def add_settings(parser: Parser, title: str, group: Iterable[settings.Setting]) -> None:
    """Declare a group of settings under a title."""
    section = parser.add_argument_group(title)
    for setting in group:
        setting.add_to(section)


def _generate(verbs: "Verbs[Parser]") -> None:
    parser = verbs.add_parser(
        "generate", help="generate text from one prompt or a file of prompts", description=GENERATE_HELP,
        epilog=GENERATE_END,
        usage="chairlift generate [MODEL] [--prompt TEXT | --prompts FILE.jsonl] [--output FILE.jsonl] [options]",
    )  # fmt: skip
    parser.leftover = "there is one MODEL, so what is {word}? A prompt follows --prompt"
    parser.set_defaults(module="chairlift.cli.generate", parser=parser)
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a Hugging Face model folder or hub id")
    parser.add_argument("--prompt", metavar="TEXT", help="one prompt; - reads it from standard input")
    parser.add_argument("--prompts", metavar="FILE.jsonl", help="a file of prompts; - is standard input")
    parser.add_argument("--output", metavar="FILE.jsonl", help="write the results there as JSON lines")
    parser.add_argument("--json", action="store_true", help="JSON on standard output, one object for a prompt")
    parser.add_argument("--chat", action="store_true", help="put prompts into the model's chat template")
    parser.add_argument("--timeout", type=settings.number, metavar="SECONDS", help="for each request")
    add_loudness(parser)
    add_settings(parser, "sampling", settings.SAMPLING)
    add_settings(parser, "engine", settings.ENGINE)
