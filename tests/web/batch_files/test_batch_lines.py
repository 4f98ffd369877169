"""read_batch: a batch file is checked as a whole before any of its requests runs."""

import codecs
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.web.batch_files import batch_lines as module
from chairlift.web.batch_files.batch_lines import (
    MAX_KEPT_PROBLEMS,
    MAX_MODEL_CHARS,
    MAX_REPORTED,
    BatchFile,
    read_batch,
)

PATHS = ("/v1/completions", "/v1/embeddings")


def line(**fields: Any) -> dict[str, Any]:
    return {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}} | fields


def written(path: Path, *entries: Any) -> Path:
    file = path / "batch.jsonl"
    file.write_text("\n".join(entry if isinstance(entry, str) else json.dumps(entry) for entry in entries) + "\n")
    return file


def test_lines_keep_their_order_numbers_and_bodies(tmp_path: Path) -> None:
    entries = [line(), "", line(custom_id="b", url="/v1/embeddings", body={"input": "é\u2028"}), line(custom_id="c")]
    first, second, third = read_batch(written(tmp_path, *entries), PATHS)
    assert [each.number for each in (first, second, third)] == [1, 3, 4]
    assert (second.custom_id, second.path) == ("b", "/v1/embeddings")
    assert json.loads(second.body) == {"input": "é\u2028"}


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    file = written(tmp_path, line(custom_id="a"), line(custom_id="b"))
    file.write_bytes(codecs.BOM_UTF8 + file.read_bytes())
    assert [each.custom_id for each in read_batch(file, PATHS)] == ["a", "b"]


def test_lines_take_memory_of_their_size(tmp_path: Path) -> None:
    file = written(tmp_path, *(line(custom_id=str(number)) for number in range(2000)))
    tracemalloc.start()
    try:
        lines = read_batch(file, PATHS)
        num_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(lines) == 2000 and num_bytes < 2000 * 1024


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{", "it is no JSON"), ("[1]", "it must be an object, got list"), ({"url": "x"}, "custom_id"),
        (line(custom_id=""), "custom_id"), (line(custom_id=5), "custom_id"), (line(custom_id="x" * 513), "custom_id"),
        (line(method="GET"), "method must be POST, got 'GET'"), (line(url="/admin/drain"), "url must be one of"),
        (line(url=None), "url must be one of"), (line(url=["x"]), "url must be one of"),
        (line(body=[]), "body must be"),
        (line(body={"stream": True}), r"body\.stream"), ('{"a": NaN}', "it is no JSON"),
        (json.dumps(line(body={})).replace("{}", '{"a": ' + "[" * 300 + "]" * 300 + "}"), "body is nested too deeply"),
    ],
)  # fmt: skip
def test_an_invalid_line_is_named(tmp_path: Path, entry: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=f"line 2: {message}"):
        read_batch(written(tmp_path, line(custom_id="good"), entry), PATHS)


def test_a_custom_id_that_comes_twice_is_named_with_both_lines(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="line 3: custom_id 'a' is that of line 1, too"):
        read_batch(written(tmp_path, line(), line(custom_id="b"), line()), PATHS)


def test_many_invalid_lines_are_counted(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"line 5: .*; and 4 more") as error:
        read_batch(written(tmp_path, *["{"] * (MAX_REPORTED + 4)), PATHS)
    assert error.value.details["param"] == "input" and "line 6" not in error.value.message


def test_a_file_without_requests_or_without_utf8(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="has no requests"):
        read_batch(written(tmp_path, "", " "), PATHS)
    file = tmp_path / "bytes.jsonl"
    file.write_bytes(b'{"custom_id": "\xff"}\n')
    with pytest.raises(InvalidRequest, match="line 1: it is no JSON"):
        read_batch(file, PATHS)
    with pytest.raises(OSError, match="nothing"):
        read_batch(tmp_path / "nothing", PATHS)


def test_a_file_is_checked_and_read_line_by_line(tmp_path: Path) -> None:
    path = written(tmp_path, line(), "{", line(custom_id="b"), line(), *["["] * MAX_KEPT_PROBLEMS)
    file = BatchFile(path, PATHS)
    check = file.check()
    assert check.num_requests == 2
    assert [each.custom_id for each in file] == ["a", "b", "a"], "a name that comes twice is the check's business"
    assert [each.number for each in check.problems[:3]] == [2, 4, 5]
    assert len(check.problems) == MAX_KEPT_PROBLEMS and check.num_problems == MAX_KEPT_PROBLEMS + 2


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_line_that_is_too_long_is_named_and_the_others_are_read(tmp_path: Path, ending: str) -> None:
    text = json.dumps(line())
    path = tmp_path / "batch.jsonl"
    long = " " * 1000 + json.dumps(line(custom_id="b"))
    path.write_bytes(codecs.BOM_UTF8 + f"{text}{ending}{long}{ending}{json.dumps(line(custom_id='c'))}".encode())
    file = BatchFile(path, PATHS, max_line_bytes=len(text))
    check = file.check()
    assert [(each.number, each.message[:21]) for each in check.problems] == [
        (2, f"it has more than {len(text)} b"[:21])
    ]
    assert [(each.number, each.custom_id) for each in file] == [(1, "a"), (3, "c")]


def test_a_check_ends_behind_the_limit_and_keeps_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a batch may have millions of lines."""
    num_parsed, parse = 0, module._parse

    def counted(*arguments: Any) -> Any:
        nonlocal num_parsed
        num_parsed += 1
        return parse(*arguments)

    monkeypatch.setattr(module, "_parse", counted)
    file = BatchFile(written(tmp_path, *(line(custom_id=str(number)) for number in range(500))), PATHS)
    assert file.check(20).num_requests == 21 == num_parsed
    assert file.check(500).num_requests == 500 == file.check().num_requests
    bad = BatchFile(written(tmp_path, *("{" for _ in range(500))), PATHS)
    assert bad.check(20).num_problems == 21 and bad.check().num_problems == 500


def test_the_models_of_a_file_have_the_lines_that_name_them_first(tmp_path: Path) -> None:
    models = ["a", None, "b", "a", 5, "", "c"]
    entries = [line(custom_id=str(number), body={"model": model}) for number, model in enumerate(models)]
    file = BatchFile(written(tmp_path, "{", *entries, line(url="x", body={"model": "d"})), PATHS)
    assert file.check().models == {"a": 2, "": 3, "b": 4, "c": 8}
    assert [each.model for each in file] == ["a", "", "b", "a", "", "", "c"]


def test_a_check_keeps_no_names(tmp_path: Path) -> None:
    """A name may have 2 KB, and a batch 50,000 of them."""
    file = BatchFile(written(tmp_path, *(line(custom_id=f"{number:04}{'é' * 500}") for number in range(1000))), PATHS)
    tracemalloc.start()
    try:
        check = file.check()
        _, peak_bytes = tracemalloc.get_traced_memory()
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert check.num_requests == 1000 and peak_bytes < 400_000 and held_bytes < 100_000


def test_a_check_ends_when_it_is_stopped(tmp_path: Path) -> None:
    file = BatchFile(written(tmp_path, *(line(custom_id=str(number)) for number in range(9))), PATHS)
    answers = iter([False] * 4)
    assert file.check(is_stopped=lambda: next(answers, True)).num_requests == 4


def test_a_file_names_so_many_models_of_so_many_characters(tmp_path: Path) -> None:
    models = ["a", "b", "c", "a", "x" * (MAX_MODEL_CHARS + 1), "b"]
    entries = [line(custom_id=str(number), body={"model": model}) for number, model in enumerate(models)]
    file = BatchFile(written(tmp_path, *entries), PATHS)
    assert file.check().num_requests == 6
    check = file.check(max_models=2)
    assert check.num_requests == 4 and check.models == {"a": 1, "b": 2}
    assert [(each.number, each.message) for each in check.problems] == [
        (3, "body.model is another one than the first 2, which is the limit"),
        (5, f"body.model has {MAX_MODEL_CHARS + 1} characters, the limit is {MAX_MODEL_CHARS}"),
    ]


def test_the_names_of_all_models_have_a_limit_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_MODEL_NAMES_BYTES", 6)
    models = ["éa", "éa", "xyz", "x", "z", "éa"]
    entries = [line(custom_id=str(number), body={"model": model}) for number, model in enumerate(models)]
    file = BatchFile(written(tmp_path, *entries), PATHS)
    check = file.check(max_models=9)
    assert check.models == {"éa": 1, "xyz": 3} and file.check().num_requests == 6
    assert [(each.number, each.message) for each in check.problems] == [
        (number, "the different names of body.model up to here have 7 bytes, the limit of their sum is 6")
        for number in (4, 5)
    ]


@pytest.mark.parametrize("between", ["\n", " \t\r\n \n", "\n" * 40_000, " " * 40_000 + "\n", "\r\n" * 20_001])
def test_empty_lines_count_and_are_left_out(tmp_path: Path, between: str) -> None:
    text = json.dumps(line())
    file = tmp_path / "batch.jsonl"
    file.write_text(f"{between}{text}\n{between}  {text}\n{between}", newline="")
    first = between.count("\n") + 1
    assert [each.number for each in BatchFile(file, PATHS)] == [first, 2 * first]


@pytest.mark.parametrize("content", [b"\n" * 1_000_000, b"x" * 1_000_000, b"\n{" * 200_000])
def test_what_has_no_requests_is_read_only_until_it_is_stopped(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "batch.jsonl"
    path.write_bytes(content)
    num_calls = 0

    def is_stopped() -> bool:
        nonlocal num_calls
        num_calls += 1
        return num_calls > 3

    file = BatchFile(path, PATHS, max_line_bytes=100)
    file.check(50_000, is_stopped=is_stopped)
    assert num_calls <= 5
    num_calls = 0
    assert not list(file.lines(50_000, is_stopped)) and num_calls <= 5


@pytest.mark.parametrize(("num_empty", "is_too_many"), [(30, False), (39, True), (1_000_000, True)])
def test_a_check_ends_behind_too_many_lines(tmp_path: Path, num_empty: int, is_too_many: bool) -> None:
    path = tmp_path / "batch.jsonl"
    path.write_text(json.dumps(line()) + "\n" * (num_empty + 1) + json.dumps(line(custom_id="b")))
    file = BatchFile(path, PATHS)
    check = file.check(10)
    assert (check.has_too_many_lines, check.num_requests) == (is_too_many, 1 if is_too_many else 2)
    assert len(list(file.lines(10))) == check.num_requests and file.check().num_requests == 2


def test_empty_lines_take_no_step_each(tmp_path: Path) -> None:
    path = tmp_path / "batch.jsonl"
    path.write_bytes(b"\n" * 1_000_000)
    num_calls = 0

    def is_stopped() -> bool:
        nonlocal num_calls
        num_calls += 1
        return False

    assert not list(BatchFile(path, PATHS).lines(None, is_stopped)) and num_calls < 200


def test_so_many_requests_are_read_as_a_check_counts(tmp_path: Path) -> None:
    file = BatchFile(written(tmp_path, *(line(custom_id=str(number)) for number in range(9))), PATHS)
    assert [len(list(file.lines(limit))) for limit in (None, 3, 9)] == [9, 3, 9]
