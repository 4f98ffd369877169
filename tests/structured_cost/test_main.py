"""`python -m structured_cost`: printed ratios, a report, and invalid input."""

import json
from pathlib import Path

import pytest

from chairlift.llm.builtin_models import RANDOM, no_model_given
from structured_cost.__main__ import main

SMALL = ("--requests", "4", "--output-tokens", "12", "--repeat", "2", "--num-blocks", "200")


@pytest.mark.full
def test_the_ratio_is_printed_and_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "structured.json"
    assert main([RANDOM, *SMALL, "--json", str(path)]) == 0
    assert "throughput with schemas for half of 4 requests:" in capsys.readouterr().out
    report = json.loads(path.read_text())
    assert report["kind"] == "chairlift structured cost" and len(report["by_turn"]) == 2
    assert report["options"]["num_blocks"] == 200 and {"commit", "versions"} <= set(report["environment"])


@pytest.mark.full
def test_without_a_model_the_embedded_one_runs_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--requests", "2", "--output-tokens", "4", "--repeat", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == no_model_given()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--requests", "1"), "--requests must be at least 2, got 1"),
        (("--output-tokens", "0"), "--output-tokens must be at least 1, got 0"),
        (("--repeat", "0"), "--repeat must be at least 1, got 0"),
        (("--scheduling-policy", "best"), "unknown scheduling_policy 'best'"),
    ],
)
def test_invalid_input_is_one_sentence(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert main([*words]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
