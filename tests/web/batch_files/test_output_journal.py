"""OutputJournal: what an interrupted run leaves is neither lost nor written twice, and no other file is changed."""

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import orjson
import pytest

from chairlift.core.errors import ConfigError
from chairlift.web.batch_files.output_journal import OutputJournal

IDS = ("a", "b", "c")


def entry(custom_id: str, status: int = 200, body: Any = None) -> dict[str, Any]:
    response = {"status_code": status, "request_id": "r", "body": body} if status else None
    return {"id": "batch_req_1", "custom_id": custom_id, "response": response, "error": None if status else {}}


def line(custom_id: str, status: int = 200) -> bytes:
    return orjson.dumps(entry(custom_id, status)) + b"\n"


def ids_in(path: Path) -> list[str]:
    return [json.loads(text)["custom_id"] for text in path.read_text().splitlines()]


def test_responses_are_appended_across_runs(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with OutputJournal(path, IDS) as journal:
        assert journal.done == set()
        journal.append("b", entry("b"))
        assert ids_in(path) == ["b"]  # at once, not at the end
    with OutputJournal(path, IDS) as journal:
        assert journal.done == {"b"} and journal.num_errors == 0
        journal.append("a", entry("a", 400, "zwei\nZeilen"))
        assert journal.num_errors == 1
    assert ids_in(path) == ["b", "a"]
    with OutputJournal(path, IDS) as journal:
        assert journal.num_errors == 1


@pytest.mark.share(40)
@pytest.mark.parametrize("cut", range(1, len(line("b"))))
def test_a_line_that_was_cut_anywhere_is_removed(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(line("a") + line("b")[:cut])
    with OutputJournal(path, IDS) as journal:
        assert journal.done == {"a"}
        journal.append("b", entry("b"))
    assert path.read_bytes() == line("a") + line("b")


@pytest.mark.parametrize("status", [0, 401, 403, 408, 429, 500, 503])
def test_what_says_nothing_about_the_request_is_not_done(tmp_path: Path, status: int) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(line("a") + line("b", status) + line("c", 404))
    with OutputJournal(path, IDS) as journal:
        assert journal.done == {"a", "c"} and journal.num_errors == 1
        journal.append("b", entry("b"))
        with pytest.raises(ConfigError, match="another process writes"):
            OutputJournal(path, IDS)
    assert ids_in(path) == ["a", "c", "b"] and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "content",
    [
        b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}\n', b"text\n", b"[]\n",
        b"precious", line("x"), line("a") + b"precious", b"\x00" * 100,
        b'{"id":"batch_req_1","custom_id":5,"response":null}\n',
        b'{"id":"batch_req_1","custom_id":"a"}\n',
    ],
)  # fmt: skip
def test_a_file_that_is_no_output_of_this_batch_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"line \d of .* is no response to a request of this batch"):
        OutputJournal(path, IDS)
    assert path.read_bytes() == content


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with OutputJournal(path, IDS), pytest.raises(ConfigError, match="another process writes"):
        OutputJournal(path, IDS)
    OutputJournal(path, IDS).close()


def test_a_pipe_has_no_earlier_lines() -> None:
    script = (
        "from pathlib import Path; from chairlift.web.batch_files.output_journal import OutputJournal\n"
        "with OutputJournal(Path('/dev/stdout'), ['a']) as journal: journal.append('a', {'custom_id': 'a'})"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert ended.stdout == b'{"custom_id":"a"}\n', ended.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_disk_is_an_error_and_the_request_is_not_done() -> None:
    journal = OutputJournal(Path("/dev/full"), IDS)
    with pytest.raises(OSError, match="space"):
        journal.append("a", entry("a"))
    assert journal.done == set()


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write = tmp_path / "out.jsonl", os.write
    num_writes = 0

    def limited(descriptor: int, data: Any) -> int:
        nonlocal num_writes
        num_writes += 1
        if num_writes == 2:
            raise OSError(28, "No space left on device")
        return write(descriptor, bytes(data)[:10])

    with OutputJournal(path, IDS) as journal:
        journal.append("a", entry("a"))
        monkeypatch.setattr(os, "write", limited)
        with pytest.raises(OSError, match="No space left"):
            journal.append("b", entry("b"))
        assert journal.done == {"a"} and path.read_bytes() == line("a")
        journal.append("b", entry("b"))
    assert path.read_bytes() == line("a") + line("b"), "a short write goes on where it ended"


def test_the_lines_of_an_earlier_run_are_never_in_memory_together(tmp_path: Path) -> None:
    path, ids = tmp_path / "out.jsonl", [f"r{number}" for number in range(2000)]
    lines = [orjson.dumps(entry(custom_id, 500 if custom_id == "r7" else 200, "x" * 10_000)) for custom_id in ids]
    path.write_bytes(b"\n".join(lines) + b"\n")
    num_bytes = path.stat().st_size
    del lines
    tracemalloc.start()
    try:
        with OutputJournal(path, ids) as journal:
            assert len(journal.done) == 1999 and "r7" not in journal.done
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < num_bytes / 10 and len(ids_in(path)) == 1999
