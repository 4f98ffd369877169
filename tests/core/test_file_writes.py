"""write_whole, naming_file: a failed write leaves the old file, a device or busy file is written in place."""

import errno
import os
from pathlib import Path

import pytest

from chairlift.core.file_writes import FileNotWritten, naming_file, write_whole
from support_file_sizes import file_size_limit
from support_shares import for_each


@for_each(("error", "reason"), [
    (OSError(errno.ENOSPC, "No space left on device"), "no space left on device"),
    (OSError(errno.EROFS, "Read-only file system"), "read-only file system"),
    (PermissionError(errno.EACCES, "Permission denied", "other"), "permission denied"),
    (IsADirectoryError(errno.EISDIR, "Is a directory"), "it is a folder"),
    (FileNotFoundError(errno.ENOENT, "No such file or directory"), "there is no folder some"),
    (TimeoutError(), "TimeoutError"),
])  # fmt: skip
def test_the_error_of_a_write_has_the_file_and_the_reason(error: OSError, reason: str) -> None:
    with pytest.raises(FileNotWritten) as caught, naming_file("some/file"):
        raise error
    assert caught.value.message == f"cannot write some/file: {reason[:1].lower()}{reason[1:]}"


def test_a_pipe_without_a_reader_stays_a_broken_pipe() -> None:
    with pytest.raises(BrokenPipeError), naming_file("x"):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


def test_a_file_that_cannot_be_written_is_as_before(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")
    path.chmod(0o640)
    with file_size_limit(100), pytest.raises(FileNotWritten, match=r"cannot write .*file: file too large"):
        write_whole(path, b"x" * 200)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
    write_whole(path, b"new")
    assert path.read_bytes() == b"new" and path.stat().st_mode & 0o777 == 0o640


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_whole(tmp_path / "link", b"a")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_bytes() == b"a"


def test_what_is_no_file_is_written_in_place() -> None:
    write_whole("/dev/null", b"a")
    with pytest.raises(FileNotWritten, match=r"^cannot write /dev/full: no space left on device$"):
        write_whole("/dev/full", b"a")
    assert not os.path.isfile("/dev/null")


def test_where_nothing_can_be_made_beside_it_a_file_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.touch()

    def refused(self: Path, target: Path) -> Path:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(Path, "replace", refused)
    write_whole(path, b"a")
    assert path.read_bytes() == b"a" and list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotWritten, match="device or resource busy"):
        write_whole(tmp_path / "new", b"a")
