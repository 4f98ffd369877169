"""ReplicaLogs: each new line once, also across the bound on the size; last lines; nothing of what was there before."""

import errno
from pathlib import Path
from typing import BinaryIO

import pytest

from chairlift.cluster.local import replica_logs
from chairlift.cluster.local.replica_logs import ReplicaLogs
from chairlift.cluster.local.state_folder import StateFolder


class Logs:
    def __init__(self, path: Path, max_bytes: int = 100) -> None:
        self.folder = StateFolder(path)
        self.folder.open()
        self.logs = ReplicaLogs(self.folder, max_bytes)
        self.id = self.folder.create()
        self.path = self.folder.path(self.id) / "log"

    def write(self, text: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text)

    def read(self, *, has_ended: bool = False) -> list[str]:
        lines = self.logs.read([self.id], [self.id] if has_ended else [])
        assert {name for name, _ in lines} <= {self.id}
        return [line for _, line in lines]


def test_each_line_is_read_once_and_an_unfinished_one_when_it_is_finished(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    assert logs.read() == []
    logs.logs.follow([])
    logs.write("one\ntwo\r\n\nth")
    assert logs.read() == ["one", "two", ""]
    assert logs.read() == []
    logs.write("ree\nfo\ufffdur")
    assert logs.read() == ["three"]
    assert logs.read(has_ended=True) == ["fo\ufffdur"]
    assert logs.read(has_ended=True) == []


def test_what_was_written_before_the_reader_came_is_not_read(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    logs.write("old\n")
    logs.logs.follow([logs.id])
    logs.write("new\n")
    logs.logs.follow([logs.id])
    assert logs.read() == ["new"]


def test_a_log_is_bounded_and_no_line_is_lost_or_read_twice(tmp_path: Path) -> None:
    logs = Logs(tmp_path, max_bytes=100)
    logs.logs.follow([])
    written, read = [], []
    for number in range(60):
        written.append(f"line {number:04d} of the log")
        logs.write(written[-1] + "\n")
        if number % 3 == 0:
            read += logs.read()
        logs.logs.bound(logs.id)
        assert logs.path.stat().st_size <= 100
    assert read + logs.read() == written
    old = logs.path.with_name("log.1")
    assert old.stat().st_size <= 130 and old.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in logs.path.parent.iterdir()) == ["log", "log.1"]


def test_unread_lines_are_kept_when_a_log_is_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_logs, "CHUNK_BYTES", 8)
    logs = Logs(tmp_path, max_bytes=100)
    logs.logs.follow([])
    lines = [f"line {number}" for number in range(20)]
    logs.write("".join(line + "\n" for line in lines))
    logs.logs.bound(logs.id)
    assert logs.path.stat().st_size == 0
    assert logs.read() == lines


def test_a_replica_goes_on_at_the_beginning_of_its_bounded_log(tmp_path: Path) -> None:
    logs = Logs(tmp_path, max_bytes=10)
    with logs.path.open("ab", buffering=0) as file:
        file.write(b"x" * 30 + b"\n")
        logs.logs.bound(logs.id)  # without a reader
        file.write(b"y\n")
    assert logs.path.read_bytes() == b"y\n"
    assert logs.path.with_name("log.1").read_bytes() == b"x" * 19 + b"\n"


def test_a_log_that_was_emptied_is_read_from_its_beginning(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    logs.logs.follow([])
    logs.write("a long line\n")
    assert logs.read() == ["a long line"]
    logs.path.write_text("new\n")
    assert logs.read() == ["new"]


def test_unread_lines_of_a_removed_folder_are_read(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    logs.logs.follow([])
    logs.write("last words")
    logs.logs.forget(logs.id)
    logs.folder.remove(logs.id)
    assert logs.read() == ["last words"]
    logs.logs.bound(logs.id)
    assert logs.read() == [] and logs.logs.last_lines(logs.id, 3) == []


def test_lines_are_bounded_in_length_and_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_logs, "MAX_LINE_BYTES", 4)
    logs = Logs(tmp_path)
    logs.logs.follow([])
    logs.write("0123456789")
    assert logs.read() == ["0123", "4567"]
    logs.write("ab\n")
    assert logs.read() == ["89ab"]
    logs.write("x\n" * 3 * replica_logs.MAX_WAITING_LINES)
    assert len(logs.read()) == replica_logs.MAX_WAITING_LINES


def test_the_last_lines_are_the_last_ones_that_say_something(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    assert logs.logs.last_lines(logs.id, 2) == []
    logs.write("a\n" * 9000 + "b\n\n  c  \n" + "d" * 1000)
    assert logs.logs.last_lines(logs.id, 3) == ["b", "c", "d" * 300]


def test_a_log_that_cannot_be_copied_is_emptied_once_and_its_lines_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fill_disk(source: object, copy: BinaryIO, *_: object) -> None:
        copy.write(b"part")
        raise OSError(errno.ENOSPC, "No space left on device")

    logs = Logs(tmp_path)
    logs.logs.follow([])
    monkeypatch.setattr(replica_logs.shutil, "copyfileobj", fill_disk)
    logs.write("x" * 98 + "\nlast\n")
    for _ in range(2):
        logs.logs.bound(logs.id)
    assert logs.path.stat().st_size == 0
    assert [path.name for path in logs.path.parent.iterdir()] == ["log"]
    logs.write("next\n")
    assert logs.read() == ["x" * 98, "last", "next"]
    assert caplog.text.count("cannot be copied, so it is emptied") == 1
