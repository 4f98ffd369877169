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


@pytest.mark.parametrize("name", ["serve", "offline", "simulate"])
def test_each_command_names_its_module(name: str) -> None:
    arguments = bench_parser().parse_args(["bench", name])
    assert arguments.module == f"chairlift.cli.commands.bench.bench_{name}"
    assert arguments.parser.prog == f"chairlift bench {name}"


def test_options_reach_the_commands() -> None:
    parse = bench_parser().parse_args
    offline = parse(["bench", "offline", "--compare", "block_size=16,32", "--against", "vllm", "--json", "a.json"])
    assert (offline.compare, offline.against, offline.threads) == (["block_size=16,32"], ["vllm"], None)
    assert (offline.repeat, offline.json) == (1, "a.json")
    assert parse(["bench", "offline", "--threads", "2", "--repeat", "3"]).repeat == 3
    serve = parse(["bench", "serve", "--url", "http://a", "--model", "m"])
    assert (serve.url, serve.model) == ("http://a", "m")
    assert set(bench_settings.LOAD_SETTINGS) <= set(serve.parser.settings)
