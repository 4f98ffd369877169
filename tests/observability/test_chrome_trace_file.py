"""TraceFile: readable whenever its writing ends, never blocks the caller, and survives a full disk."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chairlift.observability import chrome_trace_file
from chairlift.observability.chrome_trace_file import TraceFile
from support_traces import read_trace

LAST = {"ph": "M", "name": "end"}


def event(number: int) -> dict[str, Any]:
    return {"ph": "C", "name": "é", "args": {"n": number}}


def test_a_file_that_was_closed_is_plain_json(tmp_path: Path) -> None:
    file = TraceFile(tmp_path / "t.json")
    file.add([event(0), event(1)])
    file.close(LAST)
    file.close(LAST)
    file.add([event(2)])
    assert json.loads((tmp_path / "t.json").read_text(encoding="utf-8")) == [event(0), event(1), LAST]
    assert file.dropped == 0 and file.error is None


def test_an_empty_trace_is_plain_json_too(tmp_path: Path) -> None:
    TraceFile(tmp_path / "t.json").close(LAST)
    assert json.loads((tmp_path / "t.json").read_text()) == [LAST]


def test_a_process_that_is_killed_leaves_what_was_written(tmp_path: Path) -> None:
    code = f"""
import os, time
from chairlift.observability.chrome_trace_file import TraceFile
file = TraceFile({str(tmp_path / "t.json")!r})
file.add({{"n": number}} for number in range(1000))
while os.path.getsize({str(tmp_path / "t.json")!r}) < 5000:
    time.sleep(0.01)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=60)
    assert done.returncode == -9
    assert [each["n"] for each in read_trace(tmp_path / "t.json")] == list(range(1000))


def test_what_the_disk_is_too_slow_for_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chrome_trace_file, "MAX_WAITING", 10)
    monkeypatch.setattr(chrome_trace_file, "FLUSH_SECONDS", 60.0)
    file = TraceFile(tmp_path / "t.json")
    file.add(event(number) for number in range(25))
    file.close(LAST)
    assert file.dropped == 15 and len(read_trace(tmp_path / "t.json")) == 11


def test_a_full_disk_ends_the_trace_and_nothing_else() -> None:
    file = TraceFile("/dev/full")
    file.add([event(1)])
    file.close(LAST)
    assert file.error is not None and "No space left" in str(file.error)


def test_a_file_that_cannot_be_made_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        TraceFile(tmp_path / "nowhere" / "t.json")


def test_what_json_cannot_hold_is_dropped_and_counted_and_nothing_else(tmp_path: Path) -> None:
    trace = TraceFile(tmp_path / "t.json")
    trace.add([{"name": "a"}, {"name": "\ud800"}, {"name": object()}, {"name": "b"}])
    trace.close({"name": "end"})
    names = [event["name"] for event in json.loads((tmp_path / "t.json").read_text())]
    assert names == ["a", "b", "end"] and trace.dropped == 2 and trace.error is None
