"""OutputJournal: what an interrupted run leaves is neither lost nor written twice."""

import json
import os
from pathlib import Path

import pytest

from chairlift.core.errors import ConfigError
from chairlift.server.batch_files.output_journal import OutputJournal

IDS = ("a", "b", "c")


def ids_in(path: Path) -> list[str]:
    return [json.loads(text)["custom_id"] for text in path.read_text().splitlines()]


def test_responses_are_appended_across_runs(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with OutputJournal(path, IDS) as journal:
        assert journal.done == set()
        journal.append("b", {"custom_id": "b"})
        assert ids_in(path) == ["b"]  # at once, not at the end
    with OutputJournal(path, IDS) as journal:
        assert journal.done == {"b"}
        journal.append("a", {"custom_id": "a", "text": "zwei\nZeilen"})
    assert ids_in(path) == ["b", "a"]


@pytest.mark.parametrize("cut", range(1, 17))
def test_a_line_that_was_cut_anywhere_is_removed(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "out.jsonl"
    whole = b'{"custom_id":"a"}\n'
    path.write_bytes(whole + b'{"custom_id":"b"}\n'[:cut])
    with OutputJournal(path, IDS) as journal:
        assert journal.done == {"a"}
        journal.append("b", {"custom_id": "b"})
    assert path.read_bytes() == whole + b'{"custom_id":"b"}\n'


@pytest.mark.parametrize("line", ['{"custom_id": "x"}', "{}", "text", '{"custom_id": 5}', "[]"])
def test_a_file_of_another_batch_is_left_as_it_is(tmp_path: Path, line: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(f'{{"custom_id": "a"}}\n{line}\n')
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"line 2 of .* is no response to a request of this batch"):
        OutputJournal(path, IDS)
    assert path.read_bytes() == before


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with OutputJournal(path, IDS), pytest.raises(ConfigError, match="another process writes"):
        OutputJournal(path, IDS)
    OutputJournal(path, IDS).close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_disk_is_an_error_and_the_request_is_not_done() -> None:
    journal = OutputJournal(Path("/dev/full"), IDS)
    with pytest.raises(OSError, match="space"):
        journal.append("a", {"custom_id": "a"})
    assert journal.done == set()
