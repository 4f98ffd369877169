"""Traces: what a line may say, and one sentence with file and line for what it may not."""

import json
from pathlib import Path
from typing import Any

import pytest

from chairlift.bench.workload.trace_reader import read_trace
from chairlift.core.errors import InvalidRequest
from chairlift.core.structured_output import StructuredOutput


def written(folder: Path, *lines: Any) -> Path:
    path = folder / "trace.jsonl"
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text(text, encoding="utf-8")
    return path


def test_lines_become_requests_in_the_order_of_their_arrival(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {
            "at": 2,
            "prompt": [5, 6],
            "output_tokens": 3,
            "tenant": "a",
            "priority": -1,
            "timeout": 9,
            "structured": {"regex": "a+"},
        },
        "",
        {"at": 0.5, "prompt_tokens": 4, "output_tokens": 1},
        {"prompt": [1], "output_tokens": 2},
        {"at": 0.5, "prompt": [2], "output_tokens": 2},
    )
    made = read_trace(path, vocab_size=7, seed=3)
    assert (made.name, made.seed) == ("trace.jsonl", 3)
    assert [item.at for item in made.items] == [0.0, 0.5, 0.5, 2.0]
    first, drawn, later, last = made.items
    assert (first.prompt_token_ids, first.tenant, first.priority, first.timeout) == ((1,), "", 0, None)
    assert len(drawn.prompt_token_ids) == 4 and max(drawn.prompt_token_ids) < 7
    assert later.prompt_token_ids == (2,)
    assert (last.prompt_token_ids, last.tenant, last.priority, last.timeout) == ((5, 6), "a", -1, 9)
    assert last.structured == StructuredOutput(regex="a+") and first.structured is None
    assert [item.output_tokens for item in made.items] == [2, 1, 2, 3]


def test_drawn_prompts_come_from_the_seed(tmp_path: Path) -> None:
    path = written(tmp_path, {"prompt_tokens": 50, "output_tokens": 1})
    ids = [read_trace(path, vocab_size=100, seed=seed).items[0].prompt_token_ids for seed in (1, 1, 2)]
    assert ids[0] == ids[1] != ids[2]


def test_a_count_takes_the_first_by_time(tmp_path: Path) -> None:
    path = written(tmp_path, *({"at": at, "prompt": [1], "output_tokens": 1} for at in (3, 1, 2)))
    assert [item.at for item in read_trace(path, vocab_size=7, count=2).items] == [1.0, 2.0]
    assert len(read_trace(path, vocab_size=7, count=9).items) == 3
    with pytest.raises(InvalidRequest, match="requests must be at least 1, got 0"):
        read_trace(path, vocab_size=7, count=0)


GOOD = {"prompt": [1], "output_tokens": 1}
WHEN = "at must be seconds after the start, from 0 to 10000000, got"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[1]", "must be an object"),
        ({**GOOD, "promt": 1}, "unknown field 'promt'; available are at, prompt"),
        ({"output_tokens": 1}, 'needs either "prompt" or "prompt_tokens"'),
        ({**GOOD, "prompt_tokens": 2}, 'needs either "prompt" or "prompt_tokens"'),
        ({"prompt": [1]}, "needs output_tokens"),
        ({**GOOD, "prompt": []}, "prompt must be a list of token ids with at least one entry"),
        ({**GOOD, "prompt": [1, True]}, "prompt must be a list of token ids"),
        ({**GOOD, "prompt": "text"}, "prompt must be a list of token ids"),
        ({**GOOD, "prompt": [7]}, "token id 7 is outside the vocabulary of 7"),
        ({**GOOD, "prompt": [-1]}, "token id -1 is outside the vocabulary of 7"),
        ({**GOOD, "output_tokens": 0}, "output_tokens must be an integer between 1 and 10000000, got 0"),
        ({**GOOD, "output_tokens": 1.5}, "output_tokens must be an integer"),
        ({"prompt_tokens": True, "output_tokens": 1}, "prompt_tokens must be an integer"),
        ({**GOOD, "priority": "high"}, "priority must be an integer"),
        ({**GOOD, "structured": "json"}, "structured must be an object with one of json_schema, json_object, regex"),
        ({**GOOD, "structured": {"xml": 1}}, "structured must be an object with one of json_schema"),
        ({**GOOD, "structured": {}}, "structured needs exactly one of json_schema"),
        ({**GOOD, "structured": {"regex": 5}}, "structured.regex must be a string"),
        ({**GOOD, "tenant": 5}, "tenant must be text, got 5"),
        ({**GOOD, "at": -1}, f"{WHEN} -1"),
        ('{"at": NaN, "prompt": [1], "output_tokens": 1}', f"{WHEN} nan"),
        ('{"at": 1e999, "prompt": [1], "output_tokens": 1}', f"{WHEN} inf"),
        ({**GOOD, "at": 1.7e9}, f"{WHEN} 1700000000.0"),
        ({**GOOD, "at": 10**400}, f"{WHEN} a huge number"),
        ({**GOOD, "timeout": 10**400}, "timeout must be a positive number of seconds, got a huge number"),
        ({**GOOD, "priority": 10**30}, "priority must be an integer between -2147483647 and 2147483647, got a huge"),
        ({"prompt_tokens": 10**7, "output_tokens": 1}, "prompt_tokens must be an integer between 1 and 2097152"),
        ({**GOOD, "at": None}, f"{WHEN} None"),
        ({**GOOD, "timeout": 0}, "timeout must be a positive number of seconds, got 0"),
    ],
)
def test_a_bad_line_is_one_sentence_with_file_and_line(tmp_path: Path, line: Any, said: str) -> None:
    path = written(tmp_path, GOOD, line, GOOD)
    with pytest.raises(InvalidRequest) as caught:
        read_trace(path, vocab_size=7)
    assert caught.value.message.startswith(f"{path} line 2: ") and said in caught.value.message
    assert "\n" not in caught.value.message


def test_a_file_that_has_no_requests_or_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="has no requests"):
        read_trace(written(tmp_path, "", " "), vocab_size=7)
    with pytest.raises(InvalidRequest, match=r"cannot read .*none.jsonl: No such file"):
        read_trace(tmp_path / "none.jsonl", vocab_size=7)
    with pytest.raises(InvalidRequest, match="Is a directory"):
        read_trace(tmp_path, vocab_size=7)
    (tmp_path / "latin.jsonl").write_bytes(b'{"tenant": "\xe9"}')
    with pytest.raises(InvalidRequest, match="is not UTF-8"):
        read_trace(tmp_path / "latin.jsonl", vocab_size=7)
