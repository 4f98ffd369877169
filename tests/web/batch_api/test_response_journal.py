"""ResponseJournal: whole lines outlast every interruption, and nothing else does."""

import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from chairlift.web.batch_api.response_journal import ResponseJournal


def entry(custom_id: str, status: int = 200) -> dict[str, Any]:
    response = {"status_code": status, "request_id": "r", "body": {}} if status else None
    return {"id": "batch_req_1", "custom_id": custom_id, "response": response, "error": None}


def line(custom_id: str, status: int = 200) -> bytes:
    return orjson.dumps(entry(custom_id, status)) + b"\n"


def open_in(path: Path) -> ResponseJournal:
    return ResponseJournal(path / "outputs", path / "errors")


def has_exactly(journal: ResponseJournal, names: str) -> bool:
    return len(journal.done) == len(names) and all(name in journal.done for name in names)


def test_a_response_that_is_nested_too_deeply_becomes_an_error(tmp_path: Path) -> None:
    nested: Any = {}
    for _ in range(300):
        nested = [nested]
    deep = entry("a") | {"response": {"status_code": 200, "request_id": "r", "body": nested}}
    with open_in(tmp_path) as journal:
        journal.append("a", deep)
        assert "a" in journal.done and journal.num_errors == 1
    written = orjson.loads((tmp_path / "errors").read_bytes())
    assert (written["custom_id"], written["response"]) == ("a", None)
    assert written["error"]["code"] == "response_not_written"


def test_responses_and_errors_are_in_two_files_across_starts(tmp_path: Path) -> None:
    with open_in(tmp_path) as journal:
        for custom_id, status in (("a", 200), ("b", 500), ("c", 0), ("d", 201)):
            journal.append(custom_id, entry(custom_id, status))
        assert (tmp_path / "outputs").read_bytes() == line("a") + line("d", 201), "at once, not at the end"
        assert (tmp_path / "errors").read_bytes() == line("b", 500) + line("c", 0)
        assert has_exactly(journal, "abcd") and journal.num_errors == 2
    journal.close()
    with open_in(tmp_path) as journal:
        assert has_exactly(journal, "abcd") and journal.num_errors == 2, "an error that is final stays"
        assert journal.num_bytes == ((tmp_path / "outputs").stat().st_size, (tmp_path / "errors").stat().st_size)
        journal.append("e", entry("e"))
    assert (tmp_path / "outputs").read_bytes() == line("a") + line("d", 201) + line("e")


@pytest.mark.parametrize("name", ["outputs", "errors"])
@pytest.mark.parametrize(
    "tail",
    [
        b"\x00" * 64, b"\x00\n", line("b")[:-1], line("b")[:5], b"{", b"noise\n" + line("c"), b"\n", b"[]\n",
        b'{"id":"batch_req_1","custom_id":5,"response":null}\n', b"\xff\xfe\n",
    ],
)  # fmt: skip
def test_what_is_no_whole_line_is_removed_with_what_follows(tmp_path: Path, name: str, tail: bytes) -> None:
    (tmp_path / name).write_bytes(line("a") + tail)
    with open_in(tmp_path) as journal:
        assert has_exactly(journal, "a")
        assert (tmp_path / name).read_bytes() == line("a")
        journal.append("b", entry("b", 200 if name == "outputs" else 400))
    assert (tmp_path / name).read_bytes() == line("a") + line("b", 200 if name == "outputs" else 400)


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, num_writes = os.write, 0

    def limited(descriptor: int, data: Any) -> int:
        nonlocal num_writes
        num_writes += 1
        if num_writes == 2:
            raise OSError(28, "No space left on device")
        return write(descriptor, bytes(data)[:10])

    with open_in(tmp_path) as journal:
        journal.append("a", entry("a"))
        monkeypatch.setattr(os, "write", limited)
        with pytest.raises(OSError, match="No space left"):
            journal.append("b", entry("b"))
        assert "a" in journal.done and (tmp_path / "outputs").read_bytes() == line("a")
        journal.append("b", entry("b"))
    assert (tmp_path / "outputs").read_bytes() == line("a") + line("b"), "a short write goes on where it ended"


def test_both_files_are_brought_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = list[int]()
    with open_in(tmp_path) as journal:
        monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
        journal.sync()
        assert synced == [(tmp_path / name).stat().st_ino for name in ("outputs", "errors")]
    assert len(synced) == 4, "also at the end"


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "errors").mkdir()
    with pytest.raises(IsADirectoryError):
        open_in(tmp_path).open()


def test_responses_are_counted_without_opening_the_files(tmp_path: Path) -> None:
    assert open_in(tmp_path).count() == (0, 0) and list(tmp_path.iterdir()) == []
    with open_in(tmp_path) as journal:
        for custom_id, status in (("a", 200), ("b", 500), ("c", 200)):
            journal.append(custom_id, entry(custom_id, status))
    for name in ("outputs", "errors"):
        with (tmp_path / name).open("ab") as file:
            file.write(line("d")[:-5])
    assert open_in(tmp_path).count() == (2, 1)
    assert open_in(tmp_path).count(lambda: True) == (0, 0)


def test_what_a_stopped_start_has_not_read_stays(tmp_path: Path) -> None:
    content = line("a") + line("b") + b"rest"
    (tmp_path / "outputs").write_bytes(content)
    answers = iter([False, True])
    journal = open_in(tmp_path)
    journal.open(lambda: next(answers, True))
    journal.close()
    assert has_exactly(journal, "a") and (tmp_path / "outputs").read_bytes() == content
