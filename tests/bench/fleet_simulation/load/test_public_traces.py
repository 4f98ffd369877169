"""read_arrivals: the columns of known traces, a rate that stretches time, and errors that name the line."""

from pathlib import Path

import pytest

from chairlift.bench.fleet_simulation.load.public_traces import read_arrivals
from chairlift.core.errors import InvalidRequest

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.6805900,396,109
"""
BURST_GPT = """Timestamp,Session ID,Model,Request tokens,Response tokens,Total tokens,Log Type
5,1,ChatGPT,374,44,418,Conversation log
9,1,GPT-4,396,109,505,Conversation log
"""
MOONCAKE = """{"timestamp": 9000, "input_length": 396, "output_length": 109, "hash_ids": [1, 2]}

{"timestamp": 5000, "input_length": 374, "output_length": 44, "hash_ids": [1, 2]}
"""
OWN = """{"at": 1.5, "prompt_tokens": 374, "output_tokens": 44}
{"at": 5.5, "prompt_tokens": 396, "output_tokens": 109}
"""


@pytest.mark.parametrize(
    ("name", "text"), [("azure.csv", AZURE), ("burst.csv", BURST_GPT), ("mooncake.jsonl", MOONCAKE), ("own.jsonl", OWN)]
)
def test_the_columns_of_known_traces_are_read(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    arrivals = read_arrivals(path)
    assert arrivals.name == name and arrivals.at.tolist() == pytest.approx([0.0, 4.0]) and arrivals.seconds == 8.0
    assert arrivals.prompt_tokens.tolist() == [374, 396] and arrivals.output_tokens.tolist() == [44, 109]


def test_a_rate_stretches_time_and_requests_are_the_first_ones(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(f'{{"at": {at}, "prompt_tokens": 5, "output_tokens": 0}}\n' for at in (0, 4, 8, 20)))
    arrivals = read_arrivals(path, requests=3, rate=0.5)
    assert arrivals.at.tolist() == pytest.approx([0, 2, 4]) and arrivals.seconds == pytest.approx(6.0)
    assert arrivals.output_tokens.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("a.jsonl", "", "has no requests"),
        ("a.jsonl", "{}\n", r"line 1: needs the columns of one of these traces: at, prompt_tokens"),
        ("a.jsonl", OWN + "x\n", "line 3: is not JSON"),
        ("a.jsonl", OWN + '{"at": 2, "prompt_tokens": 3}\n', "line 3: output_tokens must be a number of tokens"),
        ("a.jsonl", OWN.replace("5.5", '"late"'), "line 2: at must be a number or a date"),
        ("a.jsonl", OWN.replace("5.5", "1e999"), "line 2: at must be finite"),
        ("a.csv", BURST_GPT.replace("396", "-1"), "line 3: request tokens must be between 0 and"),
        ("b.csv", None, "cannot read"),
    ],
)  # fmt: skip
def test_errors_name_the_line(tmp_path: Path, name: str, text: str | None, error: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InvalidRequest, match=error):
        read_arrivals(tmp_path / name)
