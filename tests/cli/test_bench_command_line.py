"""The declarations of the commands of `chairlift bench`."""

import pytest

from chairlift.cli.arg_parser import Parser
from chairlift.cli.bench_command_line import add_bench
from chairlift.cli.settings import bench_settings


def bench_parser() -> Parser:
    """Return a parser with `bench` alone."""
    parser = Parser(prog="chairlift")
    add_bench(parser.add_subparsers(dest="command", parser_class=Parser))
    return parser


@pytest.mark.parametrize("name", ["serve", "offline", "simulate", "scenarios", "cost", "structured"])
def test_each_command_names_its_module(name: str) -> None:
    arguments = bench_parser().parse_args(["bench", name])
    assert arguments.module == f"chairlift.cli.commands.bench.bench_{name}"
    assert arguments.parser.prog == f"chairlift bench {name}"


def test_options_reach_the_commands() -> None:
    parse = bench_parser().parse_args
    cost = parse(["bench", "cost", "fifo", "fair", "--windows", "2", "--json", "a.json"])
    assert (cost.policies, cost.windows, cost.steps, cost.json) == (["fifo", "fair"], 2, 100, "a.json")
    offline = parse(["bench", "offline", "--compare", "block_size=16,32", "--against", "vllm", "--threads", "2"])
    assert (offline.compare, offline.against, offline.threads) == (["block_size=16,32"], ["vllm"], 2)
    serve = parse(["bench", "serve", "--url", "http://a", "--model", "m"])
    assert (serve.url, serve.model) == ("http://a", "m")
    assert set(bench_settings.LOAD_SETTINGS) <= set(serve.parser.settings)
