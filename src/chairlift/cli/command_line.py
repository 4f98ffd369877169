"""Verbs: the options of every command, declared without importing what runs them.

A verb's `run(arguments) -> exit code` lives in the module that its parser names, and is imported when it is asked for.
"""

import argparse
from collections.abc import Sequence

from chairlift import __version__
from chairlift.cli.arg_parser import Parser, UsageError
from chairlift.cli.arguments import Verbs, add_command, add_model, add_settings, add_verbosity
from chairlift.cli.settings import settings, value_parsers

GENERATE_HELP = """Generate text with a model: one prompt, streamed, or a file of prompts as one batch.

  chairlift generate MODEL --prompt "The lift is"
  chairlift generate MODEL --prompts prompts.jsonl --output answers.jsonl

A line of prompts.jsonl is {"prompt": "text"}, {"prompt": [1, 2, 3]} or {"messages": [...]} (with "tools": [...]), may
have an "id" and sampling options by name ("max_tokens": 9). Results are JSON lines in the same order. Without MODEL the
embedded demo model answers; prompts are put into its chat template, unless --no-chat."""
GENERATE_END = """Sampling and engine options can also be set in the environment (--max-tokens is
CHAIRLIFT_MAX_TOKENS) and in the file of --config (max_tokens: 100). The command line wins, then the environment."""

SERVE_HELP = """Serve a model: the OpenAI API on port 8000 of this machine, for any OpenAI client.

  chairlift serve
  chairlift serve MODEL --port 8080 --key-file keys.txt
  curl localhost:8000/v1/chat/completions -H "Content-Type: application/json" \\
       -d '{"model": "chairlift:demo", "messages": [{"role": "user", "content": "Hello!"}]}'

Without MODEL the embedded demo model is served. /health says how it is, /docs what it takes, /metrics what it does.
SIGTERM or Ctrl-C lets open requests finish; the second one leaves at once."""
SERVE_END = """All of these can also be set in the environment (--drain-timeout is CHAIRLIFT_DRAIN_TIMEOUT) and in the
file of --config (drain_timeout: 10). The command line wins, then the environment; `chairlift config show` tells what
holds and why. Keys: CHAIRLIFT_API_KEY and CHAIRLIFT_ADMIN_KEY are keys themselves; `chairlift key TENANT` makes lines
for --key-file."""
CHAT_HELP = """Chat with a model in the terminal: one that runs here, or one that a server has.

  chairlift chat
  chairlift chat MODEL --system "Answer in rhymes."
  chairlift chat --url http://localhost:8000 --stats
  chairlift chat --quick "What is continuous batching?"

/help tells what can be done besides. Without MODEL the embedded demo model answers; with --url MODEL is one of the
server's names, and CHAIRLIFT_API_KEY its key."""
KEY_HELP = """Make an API key: the key, once, and the line of a key file that knows it.

  chairlift key alice --key-file keys.txt

The line has the key's SHA-256, not the key. With --key-file it is added there; a server reads its file again on
SIGHUP."""

BENCH_HELP = """Measure: the real engine, or a server, on a workload made from a seed."""
OFFLINE_HELP = """Run a workload on the engine in one go, and tell its speed.

  chairlift bench offline MODEL --workload longtail --requests 256 --json result.json --plot result.png
  chairlift bench offline MODEL --compare batching=mixed,static --repeat 3
  chairlift bench offline MODEL --workload w1 --against transformers --repeat 3

Every request is greedy and as long as the workload says. A line of a trace FILE.jsonl is {"at": 0.5, "prompt": [1, 2],
"output_tokens": 9} or has "prompt_tokens": N instead, and may have "tenant", "priority", "timeout" and "structured",
such as {"regex": "[0-9]+"}. What is compared takes turns, each in a process of its own. Without MODEL the embedded
demo model runs; chairlift:random is a tiny one with random weights, which costs next to nothing."""
OFFLINE_END = """Workload and engine options can also be set in the environment (--max-running-requests is
CHAIRLIFT_MAX_RUNNING_REQUESTS) and in the file of --config. The command line wins, then the environment."""

SIMULATE_HELP = """Run a workload on the real scheduler and cache, with a fake clock and a model that only takes time.

  chairlift bench simulate --workload longtail --requests 10000 --rate 8 --json result.json
  chairlift bench simulate --scheduling-policy fair --tenants big=10,small=1 --rate 20
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

BENCH_SERVE_HELP = """Measure a server from outside: any that speaks the OpenAI API.

  chairlift bench serve --url http://localhost:8000 --rate 2,4,8 --slo ttft=0.5,tpot=0.05 --json result.json
  chairlift bench serve --concurrency 64 --duration 20
  chairlift bench serve --overload 2,5,10 --duration 30 --plot result.png

At a --rate, or from a trace FILE.jsonl with "at", requests are sent when they are due, whatever became of the others.
Every latency counts from then. Requests are greedy and as long as the workload says. The key is CHAIRLIFT_API_KEY.
The exit code is 1 when a request failed otherwise than with 429, and when --overload found a promise that is not
held. What the numbers mean stands in docs/benchmarks.md."""
BENCH_SERVE_END = """How to load can also be set in the environment: --request-timeout-ms is
CHAIRLIFT_REQUEST_TIMEOUT_MS. The command line wins."""

DOCTOR_HELP = """Look at this machine, and at what MODEL (or else the embedded demo model) would take: does it fit?

  chairlift doctor
  chairlift doctor MODEL --max-model-len 8192

Every problem comes with what to do about it. The exit code is 1 when the model cannot be run."""

CONFIG_HELP = """Settings in a file: what holds and why, and whether a file is good.

  chairlift config show --config serve.yaml
  chairlift config validate serve.yaml"""
SHOW_HELP = """Show every setting with its value and where that comes from: a flag, the environment, a line of the file,
or the default. It takes what `serve` takes, and sampling options.

  chairlift config show --config serve.yaml --port 8080
  chairlift config show --json

Keys are never shown."""
VALIDATE_HELP = """Say everything that is wrong with a file of settings, each with its line and what to do. The exit
code is 1 then. Neither the model nor files that are named in it are looked at.

  chairlift config validate serve.yaml

A file is YAML without sections. Its keys are the flags without dashes:

  model: Qwen/Qwen2.5-0.5B-Instruct
  served_model_name: [qwen]
  port: 8080
  max_batch_tokens: 4096"""


def build_parser() -> Parser:
    """Return the parser of the whole command line.

    What it returns has `module`, whose run() does the work, and `parser`, the verb's own.
    """
    parser = Parser(prog="chairlift", description="Chairlift runs large language models by continuous batching.")
    parser.add_argument("--version", action="version", version=f"chairlift {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="COMMAND", parser_class=Parser)
    _serve(verbs)
    _generate(verbs)
    _chat(verbs)
    _key(verbs)
    _config(verbs)
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
            raise UsageError(
                f"no command is given; there is{what} {there}" if not names else f"{what[1:]} what? {there}"
            )
        if word not in inner.choices:
            raise UsageError(f"unknown command {' '.join([*names, word])!r}; there is {there}")
        names.append(word)
        parser = inner.choices[word]


def _serve(verbs: "Verbs[Parser]") -> None:
    parser = add_command(
        verbs, "serve", help="serve a model to any OpenAI client", description=SERVE_HELP, epilog=SERVE_END,
        usage="chairlift serve [MODEL] [--port N] [--key-file FILE] [options]",
    )  # fmt: skip
    add_model(parser)
    add_verbosity(parser)
    add_settings(parser, "server", settings.SERVER)
    add_settings(parser, "engine", settings.SERVE_SETTINGS)


def _chat(verbs: "Verbs[Parser]") -> None:
    parser = add_command(
        verbs, "chat", help="chat in the terminal", description=CHAT_HELP,
        usage="chairlift chat [MODEL] [--url URL] [--quick TEXT] [options]",
    )  # fmt: skip
    add_model(parser)
    parser.add_argument("--url", metavar="URL", help="of a server; without it the model runs here")
    parser.add_argument("--quick", metavar="TEXT", help="one question; - reads it from standard input")
    parser.add_argument("--system", metavar="TEXT", help="what the assistant is told first")
    parser.add_argument("--stats", action="store_true", help="show what each answer took")
    add_verbosity(parser)
    add_settings(parser, "sampling", settings.CHAT_SETTINGS)
    add_settings(parser, "engine", settings.ENGINE)


def _key(verbs: "Verbs[Parser]") -> None:
    parser = add_command(
        verbs, "key", help="make an API key", description=KEY_HELP,
        usage="chairlift key TENANT [--admin] [--key-file FILE]",
    )  # fmt: skip
    parser.add_argument("tenant", metavar="TENANT", help="whose key it is: letters, digits and ._-")
    parser.add_argument("--admin", action="store_true", help="for /admin/ alone")
    parser.add_argument("--key-file", metavar="FILE", help="add the line there")
    add_verbosity(parser)


def _config(verbs: "Verbs[Parser]") -> None:
    parser = verbs.add_parser("config", help="show settings, or check a file of them", description=CONFIG_HELP)
    inner = parser.add_subparsers(dest="config_verb", required=True, metavar="COMMAND", parser_class=Parser)
    show = add_command(
        inner, "config_show", help="every setting, and where it comes from", description=SHOW_HELP,
        usage="chairlift config show [MODEL] [--config FILE.yaml] [--json] [options]",
    )  # fmt: skip
    add_model(show)
    show.add_argument("--json", action="store_true", help="one JSON object")
    add_verbosity(show)
    add_settings(show, "server", settings.SERVER)
    add_settings(show, "engine", settings.SERVE_SETTINGS)
    add_settings(show, "sampling", settings.SAMPLING)
    show.taken += settings.WORKLOAD  # shown, though no flag of this command sets it
    validate = add_command(
        inner, "config_validate", help="check a file", description=VALIDATE_HELP,
        usage="chairlift config validate [FILE.yaml]",
    )  # fmt: skip
    validate.add_argument("path", nargs="?", metavar="FILE.yaml", help="default: that of CHAIRLIFT_CONFIG")
    add_verbosity(validate, takes_file=False)


def _generate(verbs: "Verbs[Parser]") -> None:
    parser = add_command(
        verbs, "generate", help="generate text from one prompt or a file of prompts",
        description=GENERATE_HELP, epilog=GENERATE_END,
        usage="chairlift generate [MODEL] [--prompt TEXT | --prompts FILE.jsonl] [--output FILE.jsonl] [options]",
    )  # fmt: skip
    add_model(parser)
    parser.leftover += " A prompt follows --prompt"
    parser.add_argument("--prompt", metavar="TEXT", help="one prompt; - reads it from standard input")
    parser.add_argument("--prompts", metavar="FILE.jsonl", help="a file of prompts; - is standard input")
    parser.add_argument("--output", metavar="FILE.jsonl", help="write the results there as JSON lines")
    parser.add_argument("--json", action="store_true", help="JSON on standard output, one object for a prompt")
    parser.add_argument(
        "--chat", action=argparse.BooleanOptionalAction, default=None,
        help="put prompts into the model's chat template (default: only for the demo model)",
    )  # fmt: skip
    parser.add_argument("--timeout", type=value_parsers.number, metavar="SECONDS", help="for each request")
    add_verbosity(parser)
    add_settings(parser, "sampling", settings.SAMPLING)
    add_settings(parser, "engine", settings.ENGINE)


def _doctor(verbs: "Verbs[Parser]") -> None:
    parser = add_command(
        verbs, "doctor", help="look at this machine, and at what a model would take on it",
        description=DOCTOR_HELP, usage="chairlift doctor [MODEL] [--json] [options]",
    )  # fmt: skip
    add_model(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    add_verbosity(parser)
    add_settings(parser, "engine", settings.ENGINE)


def _bench(verbs: "Verbs[Parser]") -> None:
    parser = verbs.add_parser("bench", help="measure the engine, or a server", description=BENCH_HELP)
    inner = parser.add_subparsers(dest="bench", required=True, metavar="COMMAND", parser_class=Parser)
    _bench_offline(inner)
    _bench_simulate(inner)
    _bench_scenarios(inner)
    _bench_cost(inner)
    _bench_structured(inner)
    _bench_serve(inner)


def _bench_offline(verbs: "Verbs[Parser]") -> None:
    parser = add_command(
        verbs, "bench_offline", help="run a workload on the engine in one go",
        description=OFFLINE_HELP, epilog=OFFLINE_END,
        usage="chairlift bench offline [MODEL] [--workload NAME | FILE.jsonl] [--json FILE] [options]",
    )  # fmt: skip
    add_model(parser)
    parser.add_argument("--json", metavar="FILE", help="write the report there")
    parser.add_argument("--plot", metavar="FILE.png", help="draw it there (needs matplotlib)")
    parser.add_argument("--repeat", type=value_parsers.whole, default=1, metavar="N", help="turns of each (default 1)")
    parser.add_argument(
        "--compare", action="append", default=[], metavar="OPTION=A,B",
        help="run with each value of an engine option; given twice, with each combination",
    )  # fmt: skip
    parser.add_argument(
        "--against", action="append", default=[], metavar="PEER,..",
        help="compare with transformers (generate() in batches of 8, and its continuous batching), "
        "transformers-single (one request at a time), vllm, openvino, llama.cpp; NAME@LABEL names one more of a kind",
    )  # fmt: skip
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME.SETTING=VALUE",
        help="a setting of a peer, as vllm.python=venv/bin/python, openvino.model=FOLDER, llama.cpp.model=FILE.gguf",
    )  # fmt: skip
    parser.add_argument("--threads", type=value_parsers.whole, metavar="N", help="threads of everybody who runs")
    add_verbosity(parser)
    add_settings(parser, "workload", settings.WORKLOAD)
    add_settings(parser, "engine", settings.ENGINE)


def _bench_simulate(verbs: "Verbs[Parser]") -> None:
    parser = add_command(
        verbs, "bench_simulate", help="run a workload on the real scheduler in simulated time",
        description=SIMULATE_HELP, epilog=OFFLINE_END,
        usage="chairlift bench simulate [--workload NAME | FILE.jsonl] [--json FILE] [options]",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write the report there")
    parser.add_argument("--step-times", metavar="FILE", help="how long a step takes, as JSON")
    parser.add_argument("--fit", metavar="FILE", help="find that out from a real run: --profile's trace of it")
    parser.add_argument("--save-step-times", metavar="FILE", help="write down what was fitted")
    parser.add_argument(
        "--noise", type=value_parsers.number, metavar="X", help="spread of the steps' times (default 0)"
    )
    add_verbosity(parser)
    add_settings(parser, "workload", settings.WORKLOAD)
    add_settings(parser, "engine", settings.SIMULATE_SETTINGS)


def _bench_scenarios(verbs: "Verbs[Parser]") -> None:
    parser = add_command(
        verbs, "bench_scenarios", help="measure what the policies promise", description=SCENARIOS_HELP,
        usage="chairlift bench scenarios [NAME ..] [--json FILE]",
    )  # fmt: skip
    parser.add_argument("names", nargs="*", metavar="NAME", help="some of them alone")
    parser.add_argument("--json", metavar="FILE", help="write the numbers there")
    add_verbosity(parser)


def _bench_cost(verbs: "Verbs[Parser]") -> None:
    parser = add_command(
        verbs, "bench_cost", help="measure what deciding costs", description=COST_HELP,
        usage="chairlift bench cost [POLICY ..] [--json FILE] [options]",
    )  # fmt: skip
    parser.add_argument("policies", nargs="*", metavar="POLICY", help="some of them alone")
    parser.add_argument("--json", metavar="FILE", help="write the numbers there")
    parser.add_argument("--windows", type=value_parsers.whole, default=5, metavar="N", help="turns of each (default 5)")
    parser.add_argument("--steps", type=value_parsers.whole, default=100, metavar="N", help="in a turn (default 100)")
    parser.add_argument(
        "--seed", type=value_parsers.whole, default=0, metavar="N", help="of everything drawn (default 0)"
    )
    add_verbosity(parser)


def _bench_structured(verbs: "Verbs[Parser]") -> None:
    parser = add_command(
        verbs, "bench_structured", help="measure what structured output costs", description=STRUCTURED_HELP,
        usage="chairlift bench structured [MODEL] [--json FILE] [options]",
    )  # fmt: skip
    add_model(parser)
    parser.add_argument("--json", metavar="FILE", help="write the numbers there")
    parser.add_argument("--requests", type=value_parsers.whole, default=32, metavar="N", help="in a batch (default 32)")
    parser.add_argument(
        "--output-tokens", type=value_parsers.whole, default=128, metavar="N", help="of each request (default 128)"
    )
    parser.add_argument("--repeat", type=value_parsers.whole, default=5, metavar="N", help="turns of each (default 5)")
    parser.add_argument(
        "--seed", type=value_parsers.whole, default=0, metavar="N", help="of everything drawn (default 0)"
    )
    add_verbosity(parser)
    add_settings(parser, "engine", settings.ENGINE)


def _bench_serve(verbs: "Verbs[Parser]") -> None:
    parser = add_command(
        verbs, "bench_serve", help="measure a server from outside",
        description=BENCH_SERVE_HELP, epilog=BENCH_SERVE_END,
        usage="chairlift bench serve [--url URL] [--rate R,.. | --concurrency N | --overload X,..] [options]",
    )  # fmt: skip
    parser.add_argument(
        "--url", default="http://127.0.0.1:8000", metavar="URL", help="of the server (default http://127.0.0.1:8000)"
    )
    parser.add_argument("--model", metavar="NAME", help="one that it serves (default: its first)")
    parser.add_argument("--json", metavar="FILE", help="write the report there")
    parser.add_argument("--plot", metavar="FILE.png", help="draw it there (needs matplotlib)")
    add_verbosity(parser)
    add_settings(parser, "load", settings.LOAD_SETTINGS)
