"""read_objects: each line's object with its place, and errors that name file and line."""

from pathlib import Path

import pytest

from chairlift.bench.workload.json_lines import read_lines, read_objects
from chairlift.core.errors import InvalidRequest


def written(folder: Path, content: bytes) -> Path:
    path = folder / "trace.jsonl"
    path.write_bytes(content)
    return path


def test_each_object_has_its_place_and_blank_lines_have_none(tmp_path: Path) -> None:
    path = written(tmp_path, b'\xef\xbb\xbf{"a": 1}\r\n\n  \n{"b": "\xc3\xa4"}')
    assert list(read_objects(path)) == [(f"{path} line 1", {"a": 1}), (f"{path} line 4", {"b": "ä"})]
    assert list(read_objects(written(tmp_path, b""))) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}\n{', r"trace\.jsonl line 2: is not JSON: "), (b"[" * 100_000, "line 1: is not JSON: "),
        (b'\n["a"]', r"line 2: must be an object with one field$"),
        (b" " * 50_000 + b"\xff", "is not UTF-8: .* at byte 50000$"),
    ],
)  # fmt: skip
def test_an_invalid_line_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        list(read_objects(written(tmp_path, content), "an object with one field"))


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(InvalidRequest, match=f"cannot read {path}: "):
            read_lines(path)
