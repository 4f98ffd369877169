"""The arguments of `chairlift run-batch`."""

import pytest

from chairlift.cli.command_line import build_parser
from chairlift.cli.main import main


def test_defaults_and_short_names() -> None:
    arguments = build_parser().parse_args(["run-batch", "-i", "in.jsonl", "-o", "out.jsonl"])
    assert (arguments.input, arguments.output, arguments.url) == ("in.jsonl", "out.jsonl", None)
    assert (arguments.max_concurrent, arguments.max_retries, arguments.served_model_name) == (512, 10, None)


@pytest.mark.parametrize("value", ["0", "-1", "x"])
def test_a_number_of_requests_is_positive(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run-batch", "-i", "a", "-o", "b", "--max-concurrent", value]) == 2
    assert "--max-concurrent" in capsys.readouterr().err
