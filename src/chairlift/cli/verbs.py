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

A line of prompts.jsonl is {"prompt": "text"}, {"prompt": [1, 2, 3]} or {"messages": [...]} (with "tools": [...]), may
have an "id" and sampling options by name ("max_tokens": 9). Results are JSON lines in the same order. Without MODEL the
embedded demo model answers; prompts are put into its chat template, unless --no-chat."""
GENERATE_END = """Sampling and engine options can also be set in the environment: --max-tokens is CHAIRLIFT_MAX_TOKENS.
The command line wins."""

BENCH_HELP = """Measure: the real engine on a workload made from a seed."""
OFFLINE_HELP = """Run a workload on the engine in one go, and tell its speed.

  chairlift bench offline MODEL --workload longtail --requests 256 --json result.json --plot result.png
  chairlift bench offline MODEL --compare batching=mixed,static --repeat 3
  chairlift bench offline MODEL --workload w1 --against transformers --repeat 3

Every request is greedy and as long as the workload says. A line of a trace FILE.jsonl is {"at": 0.5, "prompt": [1, 2],
"output_tokens": 9} or has "prompt_tokens": N instead, and may have "tenant", "priority", "timeout" and "structured",
such as {"regex": "[0-9]+"}. What is compared takes turns, each in a process of its own. Without MODEL the embedded
demo model runs; chairlift:random is a tiny one with random weights, which costs next to nothing."""
OFFLINE_END = """Workload and engine options can also be set in the environment: --max-running-requests is
CHAIRLIFT_MAX_RUNNING_REQUESTS. The command line wins."""

SIMULATE_HELP = """Run a workload on the real scheduler and cache, with a fake clock and a model that only takes time.

  chairlift bench simulate --workload longtail --requests 10000 --rate 8 --json result.json
  chairlift bench simulate --policy fair --tenants big=10,small=1 --rate 20
  chairlift bench offline MODEL --profile trace.json && chairlift bench simulate --fit trace.json

How long a step takes comes from --step-times, a file such as {"step": 0.02, "row": 0.001, "prefill_token": 0.0005,
"context_token": 4e-6, "prefill_pair": 5e-7} (seconds), from --fit, or else from a small model that was measured on two
CPU cores. The same seed gives the same report. Structures in a trace's lines change nothing here."""
SCENARIOS_HELP = """Measure in the simulator, with fixed seeds, what the policies promise: fairness, ageing, prefix
hits, the inter-token target, a small pool, and pages against preallocated memory."""
COST_HELP = """Measure what deciding costs: schedule and commit of every policy at 256 and 1,024 running, and with 100
to 100,000 waiting. One sequence in twenty finishes in each step. Arms take turns."""

STRUCTURED_HELP = """Measure what masks cost: a batch without any structure, and the same with every other request under
a JSON Schema, in turns. Without MODEL the embedded demo model runs, which has few tokens to mask."""

DOCTOR_HELP = """Look at this machine, and at what MODEL (or else the embedded demo model) would take: does it fit?

  chairlift doctor
  chairlift doctor MODEL --max-model-len 8192

Every problem comes with what to do about it. The exit code is 1 when the model cannot be run."""


def build_parser() -> Parser:
    """Return the parser of the whole command line.

    What it returns has `module`, whose run() does the work, and `parser`, the verb's own.
    """
    parser = Parser(prog="chairlift", description="Chairlift runs large language models by continuous batching.")
    parser.add_argument("--version", action="version", version=f"chairlift {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND", parser_class=Parser)
    _generate(verbs)
    _bench(verbs)
    _doctor(verbs)
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
    """Declare -v and -q and how to log, which every verb has."""
    loud = parser.add_mutually_exclusive_group()
    loud.add_argument("-v", "--verbose", action="store_true", help="log everything; tracebacks")
    loud.add_argument("-q", "--quiet", action="store_true", help="errors alone on standard error")
    add_settings(parser, "logging", settings.LOGGING)


def add_settings(parser: Parser, title: str, group: Iterable[settings.Setting]) -> None:
    """Declare a group of settings under a title."""
    section = parser.add_argument_group(title)
    for setting in group:
        setting.add_to(section)


def _verb(
    verbs: "Verbs[Parser]", module: str, *, help: str, description: str, usage: str, epilog: str | None = None
) -> Parser:
    """Declare a command that `run` of that module of this room carries out, and that has its name (without bench_)."""
    parser = verbs.add_parser(
        module.removeprefix("bench_"), help=help, description=description, usage=usage, epilog=epilog
    )
    parser.set_defaults(module=f"chairlift.cli.{module}", parser=parser)
    return parser


def _add_model(parser: Parser) -> None:
    """Declare the one model that a command may take."""
    parser.leftover = "there is one MODEL, so what is {word}?"
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a Hugging Face model folder or hub id; without one the embedded demo model",
    )


def _generate(verbs: "Verbs[Parser]") -> None:
    parser = _verb(
        verbs, "generate", help="generate text from one prompt or a file of prompts",
        description=GENERATE_HELP, epilog=GENERATE_END,
        usage="chairlift generate [MODEL] [--prompt TEXT | --prompts FILE.jsonl] [--output FILE.jsonl] [options]",
    )  # fmt: skip
    _add_model(parser)
    parser.leftover += " A prompt follows --prompt"
    parser.add_argument("--prompt", metavar="TEXT", help="one prompt; - reads it from standard input")
    parser.add_argument("--prompts", metavar="FILE.jsonl", help="a file of prompts; - is standard input")
    parser.add_argument("--output", metavar="FILE.jsonl", help="write the results there as JSON lines")
    parser.add_argument("--json", action="store_true", help="JSON on standard output, one object for a prompt")
    parser.add_argument(
        "--chat", action=argparse.BooleanOptionalAction, default=None,
        help="put prompts into the model's chat template (default: only for the demo model)",
    )  # fmt: skip
    parser.add_argument("--timeout", type=settings.number, metavar="SECONDS", help="for each request")
    add_loudness(parser)
    add_settings(parser, "sampling", settings.SAMPLING)
    add_settings(parser, "engine", settings.ENGINE)


def _doctor(verbs: "Verbs[Parser]") -> None:
    parser = _verb(
        verbs, "doctor", help="look at this machine, and at what a model would take on it",
        description=DOCTOR_HELP, usage="chairlift doctor [MODEL] [--json] [options]",
    )  # fmt: skip
    _add_model(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    add_loudness(parser)
    add_settings(parser, "engine", settings.ENGINE)


def _bench(verbs: "Verbs[Parser]") -> None:
    parser = verbs.add_parser("bench", help="measure the engine", description=BENCH_HELP)
    inner = parser.add_subparsers(dest="bench", required=True, metavar="COMMAND", parser_class=Parser)
    _bench_offline(inner)
    _bench_simulate(inner)
    _bench_scenarios(inner)
    _bench_cost(inner)
    _bench_structured(inner)


def _bench_offline(verbs: "Verbs[Parser]") -> None:
    parser = _verb(
        verbs, "bench_offline", help="run a workload on the engine in one go",
        description=OFFLINE_HELP, epilog=OFFLINE_END,
        usage="chairlift bench offline [MODEL] [--workload NAME | FILE.jsonl] [--json FILE] [options]",
    )  # fmt: skip
    _add_model(parser)
    parser.add_argument("--json", metavar="FILE", help="write the report there")
    parser.add_argument("--plot", metavar="FILE.png", help="draw it there (needs matplotlib)")
    parser.add_argument("--repeat", type=settings.whole, default=1, metavar="N", help="turns of each (default 1)")
    parser.add_argument(
        "--compare", action="append", default=[], metavar="OPTION=A,B",
        help="run with each value of an engine option; given twice, with each combination",
    )  # fmt: skip
    parser.add_argument(
        "--against", action="append", default=[], metavar="PEER,..",
        help="compare with transformers (generate() in batches of 8, and its continuous batching)",
    )  # fmt: skip
    parser.add_argument("--threads", type=settings.whole, metavar="N", help="threads of everybody who runs")
    add_loudness(parser)
    add_settings(parser, "workload", settings.WORKLOAD)
    add_settings(parser, "engine", settings.ENGINE)


def _bench_simulate(verbs: "Verbs[Parser]") -> None:
    parser = _verb(
        verbs, "bench_simulate", help="run a workload on the real scheduler in simulated time",
        description=SIMULATE_HELP, epilog=OFFLINE_END,
        usage="chairlift bench simulate [--workload NAME | FILE.jsonl] [--json FILE] [options]",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write the report there")
    parser.add_argument("--step-times", metavar="FILE", help="how long a step takes, as JSON")
    parser.add_argument("--fit", metavar="FILE", help="find that out from a real run: --profile's trace of it")
    parser.add_argument("--save-step-times", metavar="FILE", help="write down what was fitted")
    parser.add_argument("--noise", type=settings.number, metavar="X", help="spread of the steps' times (default 0)")
    add_loudness(parser)
    add_settings(parser, "workload", settings.WORKLOAD)
    add_settings(parser, "engine", settings.SIMULATED)


def _bench_scenarios(verbs: "Verbs[Parser]") -> None:
    parser = _verb(
        verbs, "bench_scenarios", help="measure what the policies promise", description=SCENARIOS_HELP,
        usage="chairlift bench scenarios [NAME ..] [--json FILE]",
    )  # fmt: skip
    parser.add_argument("names", nargs="*", metavar="NAME", help="some of them alone")
    parser.add_argument("--json", metavar="FILE", help="write the numbers there")
    add_loudness(parser)


def _bench_cost(verbs: "Verbs[Parser]") -> None:
    parser = _verb(
        verbs, "bench_cost", help="measure what deciding costs", description=COST_HELP,
        usage="chairlift bench cost [POLICY ..] [--json FILE] [options]",
    )  # fmt: skip
    parser.add_argument("policies", nargs="*", metavar="POLICY", help="some of them alone")
    parser.add_argument("--json", metavar="FILE", help="write the numbers there")
    parser.add_argument("--windows", type=settings.whole, default=5, metavar="N", help="turns of each (default 5)")
    parser.add_argument("--steps", type=settings.whole, default=100, metavar="N", help="in a turn (default 100)")
    parser.add_argument("--seed", type=settings.whole, default=0, metavar="N", help="of everything drawn (default 0)")
    add_loudness(parser)


def _bench_structured(verbs: "Verbs[Parser]") -> None:
    parser = _verb(
        verbs, "bench_structured", help="measure what structured output costs", description=STRUCTURED_HELP,
        usage="chairlift bench structured [MODEL] [--json FILE] [options]",
    )  # fmt: skip
    _add_model(parser)
    parser.add_argument("--json", metavar="FILE", help="write the numbers there")
    parser.add_argument("--requests", type=settings.whole, default=32, metavar="N", help="in a batch (default 32)")
    parser.add_argument(
        "--output-tokens", type=settings.whole, default=128, metavar="N", help="of each request (default 128)"
    )
    parser.add_argument("--repeat", type=settings.whole, default=5, metavar="N", help="turns of each (default 5)")
    parser.add_argument("--seed", type=settings.whole, default=0, metavar="N", help="of everything drawn (default 0)")
    add_loudness(parser)
    add_settings(parser, "engine", settings.ENGINE)
