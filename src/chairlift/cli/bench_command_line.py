"""Bench command line: declares the options of the commands of `chairlift bench` without importing their modules."""

from chairlift.cli import help_texts as texts
from chairlift.cli.arg_parser import Parser
from chairlift.cli.settings import bench_settings, settings, value_parsers
from chairlift.cli.settings.foreign_flag_actions import add_foreign_flags
from chairlift.cli.shared_arguments import Subcommands, add_command, add_model, add_settings, add_verbosity


def add_bench(subcommands: "Subcommands[Parser]") -> None:
    """Declare `chairlift bench` and its commands."""
    parser = subcommands.add_parser("bench", help="measure the engine or a server", description=texts.BENCH_HELP)
    inner = parser.add_subparsers(dest="bench", required=True, metavar="COMMAND", parser_class=Parser, title="commands")
    _bench_serve(inner)
    _bench_offline(inner)
    _bench_simulate(inner)


def _add_json(parser: Parser) -> None:
    parser.add_argument("--json", metavar="FILE", help="write the report to FILE as JSON")


def _add_plot(parser: Parser) -> None:
    parser.add_argument("--plot", metavar="FILE.png", help="write a plot of the report to this file (needs matplotlib)")


def _bench_offline(subcommands: "Subcommands[Parser]") -> None:
    parser = add_command(
        subcommands, "bench.bench_offline", help="run a workload on the engine without a server",
        description=texts.OFFLINE_HELP, epilog=texts.OFFLINE_END,
        usage="chairlift bench offline [MODEL] [--workload NAME | FILE.jsonl] [--json FILE] [options]",
    )  # fmt: skip
    add_model(parser)
    _add_json(parser)
    _add_plot(parser)
    parser.add_argument(
        "--repeat", type=value_parsers.integer, default=1, metavar="N",
        help="number of runs of each compared engine or option (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--compare", action="append", default=[], metavar="OPTION=A,B",
        help="compare these values of an engine setting; for several settings, compare every combination",
    )  # fmt: skip
    parser.add_argument(
        "--against", action="append", default=[], metavar="PEER,..",
        help="compare with other engines: transformers (generate() in batches of 8, and its continuous batching), "
        "transformers-single (one request at a time), vllm, openvino, llama.cpp; NAME@LABEL adds another "
        "configuration of an engine",
    )  # fmt: skip
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME.SETTING=VALUE",
        help="setting of an engine in --against, such as vllm.python=venv/bin/python, openvino.model=FOLDER or "
        "llama.cpp.model=FILE.gguf; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--threads", type=value_parsers.integer, metavar="N",
        help="number of threads of each compared engine (default: the engine's own)",
    )  # fmt: skip
    add_verbosity(parser)
    add_settings(parser, "workload", bench_settings.WORKLOAD)
    add_settings(parser, "engine", settings.ENGINE)
    add_settings(parser, "logging", settings.LOGGING)
    add_foreign_flags(parser)


def _bench_simulate(subcommands: "Subcommands[Parser]") -> None:
    parser = add_command(
        subcommands, "bench.bench_simulate", help="run a workload on the real scheduler in simulated time",
        description=texts.SIMULATE_HELP, epilog=texts.OFFLINE_END,
        usage="chairlift bench simulate [--workload NAME | FILE.jsonl] [--json FILE] [options]",
    )  # fmt: skip
    _add_json(parser)
    parser.add_argument("--step-times", metavar="FILE", help="read the durations of steps from FILE (JSON)")
    parser.add_argument(
        "--fit", metavar="FILE", help="fit the durations of steps to FILE, a trace of a real run (--profile)"
    )
    parser.add_argument(
        "--save-step-times", metavar="FILE", help="write the durations in use to FILE, for --step-times"
    )
    parser.add_argument(
        "--confirmed-drafts",
        type=value_parsers.number,
        metavar="X",
        help="mean drafts of speculative decoding that a request confirms in a step without prefill tokens "
        "(default: 0, or that of --step-times)",
    )
    parser.add_argument(
        "--noise", type=value_parsers.number, metavar="X",
        help="relative spread of the durations of steps (default: 0, or that of --step-times)",
    )  # fmt: skip
    add_verbosity(parser)
    add_settings(parser, "workload", bench_settings.WORKLOAD)
    add_settings(parser, "engine", settings.SIMULATE_SETTINGS)
    add_settings(parser, "simulated fleet", bench_settings.SIMULATED_FLEET)
    add_settings(parser, "logging", settings.LOGGING)


def _bench_serve(subcommands: "Subcommands[Parser]") -> None:
    parser = add_command(
        subcommands, "bench.bench_serve", help="measure a running server",
        description=texts.BENCH_SERVE_HELP, epilog=texts.BENCH_SERVE_END,
        usage="chairlift bench serve [--url URL] [--rate R,.. | --concurrency N | --overload X,..] [options]",
    )  # fmt: skip
    parser.add_argument(
        "--url",
        default="http://127.0.0.1:8000",
        metavar="URL",
        help="URL of the server (default: http://127.0.0.1:8000)",
    )
    parser.add_argument("--model", metavar="NAME", help="model name of the server (default: its first)")
    _add_json(parser)
    _add_plot(parser)
    add_verbosity(parser)
    add_settings(parser, "load", bench_settings.LOAD_SETTINGS)
    add_settings(parser, "logging", settings.LOGGING)
