"""report_output.write: a failed write leaves the old report and names the file."""

import json
from pathlib import Path

import pytest

from chairlift.bench.report import report_output
from chairlift.core.file_writes import FileNotWritten
from support_file_sizes import file_size_limit


def test_a_report_that_cannot_be_written_leaves_the_one_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    report_output.write(str(path), {"a": 1})
    with file_size_limit(10), pytest.raises(FileNotWritten, match=r"^cannot write .*result\.json: file too large$"):
        report_output.write(str(path), {"a": "x" * 99})
    assert json.loads(path.read_bytes()) == {"a": 1} and list(tmp_path.iterdir()) == [path]


def test_a_report_can_go_into_what_is_no_file() -> None:
    report_output.write("/dev/null", {"a": 1})
    with pytest.raises(FileNotWritten, match=r"^cannot write /dev/full: no space left on device$"):
        report_output.write("/dev/full", {"a": 1})
