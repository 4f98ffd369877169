"""`chairlift bench structured`: a sentence and a report, and what it refuses."""

import json
from pathlib import Path

import pytest

from chairlift.cli.main import main
from chairlift.llm.model_names import RANDOM, no_model_given

SMALL = ("--requests", "4", "--output-tokens", "12", "--repeat", "2", "--num-blocks", "200")


def test_the_ratio_is_printed_and_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "structured.json"
    assert main(["bench", "structured", RANDOM, *SMALL, "--json", str(path)]) == 0
    assert "throughput with half of 4 requests under schemas:" in capsys.readouterr().out
    report = json.loads(path.read_text())
    assert report["kind"] == "chairlift bench structured" and len(report["by_turn"]) == 2
    assert report["options"]["num_blocks"] == 200 and {"commit", "versions"} <= set(report["environment"])


def test_without_a_model_it_is_the_embedded_one_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "structured", "--requests", "2", "--output-tokens", "4", "--repeat", "1"]) == 0
    assert capsys.readouterr().err.splitlines()[0] == no_model_given()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--requests", "1"), "requests must be at least 2, got 1"),
        (("--output-tokens", "0"), "output_tokens must be at least 1, got 0"),
        (("--repeat", "0"), "repeat must be at least 1, got 0"),
        (("--json", "/nowhere/x.json"), "there is no folder /nowhere"),
        (("--scheduling-policy", "best"), "unknown scheduling_policy 'best'"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert main(["bench", "structured", *words]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1
