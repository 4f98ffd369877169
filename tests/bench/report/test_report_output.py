"""report_output.write: a failed write leaves the old report; a device or busy file is written in place."""

import errno
import json
from pathlib import Path

import pytest

from chairlift.bench.report import report_output
from chairlift.core.errors import ConfigError


def test_a_report_that_cannot_be_written_leaves_the_one_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "result.json"
    report_output.write(str(path), {"a": 1})

    def full(self: Path, *_: object, **__: object) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        report_output.write(str(path), {"a": 2})
    assert json.loads(path.read_bytes()) == {"a": 1} and list(tmp_path.iterdir()) == [path]


def test_a_report_can_go_into_what_is_no_file() -> None:
    report_output.write("/dev/null", {"a": 1})
    with pytest.raises(ConfigError, match="cannot write /dev/full: No space left"):
        report_output.write("/dev/full", {"a": 1})


def test_where_nothing_can_be_made_beside_it_a_report_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "result.json"
    path.touch()

    def refused(self: Path, target: Path) -> Path:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(Path, "replace", refused)
    report_output.write(str(path), {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1} and list(tmp_path.iterdir()) == [path]
    with pytest.raises(ConfigError, match="cannot write"):
        report_output.write(str(tmp_path / "new.json"), {"a": 1})
