"""PrivateFolder: one process holds it, a temporary one goes; write_atomically: the old content or the new one."""

import os
import stat
from pathlib import Path

import pytest

from chairlift.core.errors import Unavailable
from chairlift.web.batch_api.private_folder import PrivateFolder, storage_error, write_atomically


def test_a_folder_is_made_for_its_user_alone_and_stays(tmp_path: Path) -> None:
    folder = PrivateFolder(tmp_path / "a" / "b")
    assert not folder.is_open
    assert folder.open() == folder.open() == tmp_path / "a" / "b" and folder.is_open
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    folder.close()
    folder.close()
    assert not folder.is_open and (tmp_path / "a" / "b").is_dir()


def test_a_second_server_does_not_get_it_until_it_is_closed(tmp_path: Path) -> None:
    first, second = PrivateFolder(tmp_path / "a"), PrivateFolder(tmp_path / "a")
    first.open()
    with pytest.raises(Unavailable, match="another server of this machine"):
        second.open()
    first.close()
    second.open()
    second.close()


def test_a_temporary_folder_is_deleted() -> None:
    folder = PrivateFolder(None)
    assert folder.path is None, "nothing is made before it is needed"
    path = folder.open()
    (path / "x").write_bytes(b"x")
    folder.close()
    assert not path.exists()


def test_a_folder_that_cannot_be_made_is_an_error_for_clients_without_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Unavailable, match="cannot be used: Not a directory") as error:
        PrivateFolder(tmp_path / "file" / "x").open()
    assert str(tmp_path) not in error.value.message
    assert storage_error(OSError(28, os.strerror(28))).message.endswith("No space left on device")


def test_a_failed_write_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"

    def fail(descriptor: int) -> None:
        raise OSError(28, "full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="full"):
        write_atomically(path, b"newer")
    assert path.read_bytes() == b"new" and os.listdir(tmp_path) == ["x.json"]
