"""FileStore: files outlive the process, are each tenant's own, stay within the limits; no failure leaves anything."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from chairlift.core.errors import BodyTooLarge, InvalidRequest, NotFound, Unavailable
from chairlift.web.batch_api import file_store
from chairlift.web.batch_api.disk_usage import DiskUsage
from chairlift.web.batch_api.file_store import FileStore, StoredFile, plain_file_name
from chairlift.web.batch_api.files_config import FilesConfig


def store_in(path: Path, **limits: Any) -> FileStore:
    return FileStore(path / "files", FilesConfig(**limits), now=lambda: 7.9)


def add(store: FileStore, content: bytes = b"content", tenant: str = "alice", purpose: str = "batch") -> StoredFile:
    with store.begin(tenant) as new_file:
        for index in range(0, len(content), 3):
            new_file.write(content[index : index + 3])
        return new_file.commit("../a/b.jsonl", purpose)


def test_a_file_has_openais_object_and_outlives_the_process(tmp_path: Path) -> None:
    file = add(store_in(tmp_path))
    again = store_in(tmp_path)
    assert again.get("alice", file.id) == file and again.path(file).read_bytes() == b"content"
    assert file.to_object() == {
        "id": file.id, "object": "file", "bytes": 7, "created_at": 7, "filename": "b.jsonl", "purpose": "batch",
        "status": "processed", "status_details": None, "expires_at": None,
    }  # fmt: skip


def test_files_are_each_tenants_own_and_listed_by_purpose(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    first, second, other = add(store), add(store, purpose="user_data"), add(store, tenant="bob")
    assert store.of_tenant("alice") == [first, second] and store.of_tenant("alice", "batch") == [first]
    assert store.of_tenant("") == []
    for call in (store.get, store.delete):
        with pytest.raises(NotFound, match=f"no file {other.id}"):
            call("alice", other.id)
    store.delete("bob", other.id)
    with pytest.raises(NotFound):
        store.get("bob", other.id)
    assert len(list((tmp_path / "files").iterdir())) == 4


@pytest.mark.parametrize("file_id", ["../../etc/passwd", "", "file-", "x" * 10_000, "\x00", "é", "lock"])
def test_an_id_is_never_a_path(tmp_path: Path, file_id: str) -> None:
    with pytest.raises(NotFound) as error:
        store_in(tmp_path).get("alice", file_id)
    assert len(error.value.message) < 200 and error.value.message.isascii()


def test_the_limits_of_a_file_and_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = DiskUsage(15)
    store = FileStore(tmp_path / "files", FilesConfig(max_file_bytes=10, files_bytes=15), usage)
    with pytest.raises(BodyTooLarge, match="the file has 12 bytes or more, the limit is 10"):
        add(store, b"x" * 13, "")
    file = add(store, b"x" * 10, "")
    with pytest.raises(BodyTooLarge, match=r"have 10 bytes and this one 6 or more, the limit of their sum is 15"):
        add(store, b"x" * 7, "")
    assert usage.num_bytes() == 10, "an upload that failed takes no room"
    add(store, b"x" * 5, "")
    with pytest.raises(BodyTooLarge, match="the limit of their sum is 15"):
        store.check_room("")
    store.delete("", file.id)
    assert usage.num_bytes() == 5
    monkeypatch.setattr(file_store, "MAX_FILES", 1)
    with pytest.raises(InvalidRequest, match="1 files are stored, the limit is 1"):
        store.check_room("")
    with pytest.raises(BodyTooLarge, match="limit of their sum is 0"):
        FileStore(tmp_path / "none", FilesConfig(files_bytes=0)).check_room("")


def test_a_tenant_leaves_room_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_store, "MAX_FILES", 4)
    store = store_in(tmp_path, files_bytes=100)
    first = add(store, b"x" * 40)
    with pytest.raises(BodyTooLarge, match=r"your files and batches have 40 bytes and this one 12 or more, .* is 50"):
        add(store, b"x" * 12)
    add(store, b"x" * 10)
    with pytest.raises(BodyTooLarge, match="your files and batches have 50 bytes"):
        store.check_room("alice")
    store.check_room("bob")
    add(store, b"x" * 50, "bob")
    store.delete("alice", first.id)
    add(store, b"x")
    with pytest.raises(InvalidRequest, match="you have 2 files, the limit is 2"):
        store.check_room("alice")
    with store.begin("alice") as new_file, pytest.raises(InvalidRequest, match="you have 2 files"):
        new_file.commit("a", "batch")


def test_a_whole_file_is_taken_over_without_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_in(tmp_path, files_bytes=3)
    for content in (b"content", b"content that is new"):
        (tmp_path / "journal").unlink(missing_ok=True)
        (tmp_path / "journal").write_bytes(content)
        file = store.adopt(tmp_path / "journal", "alice", "o", "batch_output", "file-0")
    assert store.of_tenant("alice") == [file] and file.num_bytes == 19 and file.id == "file-0"
    assert store.path(file).stat().st_ino == (tmp_path / "journal").stat().st_ino
    assert store.adopt(tmp_path / "journal", "alice", "o", "batch_output", "file-0") == file, "it can be repeated"
    assert sorted(os.listdir(tmp_path / "files")) == ["file-0.data", "file-0.json"]

    def fail(*arguments: object) -> None:
        raise OSError(errno.EXDEV, "cross-device link")

    monkeypatch.setattr(os, "link", fail)
    copied = store.adopt(tmp_path / "journal", "alice", "o", "batch_output", "file-1")
    assert store.path(copied).read_bytes() == b"content that is new"


def test_two_uploads_at_once_share_the_room(tmp_path: Path) -> None:
    usage = DiskUsage(10)
    store = FileStore(tmp_path / "files", FilesConfig(), usage)
    with store.begin("") as first, store.begin("") as second:
        first.write(b"x" * 6)
        second.write(b"x" * 4)
        for each in (first, second):
            with pytest.raises(BodyTooLarge):
                each.write(b"x")
    assert usage.num_bytes() == 0 and os.listdir(tmp_path / "files") == []


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = DiskUsage(1000)
    store = FileStore(tmp_path / "files", FilesConfig(), usage)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class FullFile:
        def write(self, data: Any) -> int:
            raise full

        def close(self) -> None: ...

    with store.begin("") as new_file:
        new_file._file.close()
        new_file._file = FullFile()  # type: ignore[assignment]
        with pytest.raises(Unavailable, match="cannot be used: No space left"):
            new_file.write(b"x")

    def fail(*arguments: Any) -> None:
        raise full

    monkeypatch.setattr(file_store, "write_atomically", fail)
    with pytest.raises(Unavailable, match="No space left"):
        add(store)
    assert usage.num_bytes() == 0 and store.of_tenant("alice") == [] and os.listdir(tmp_path / "files") == []


def test_what_a_kill_leaves_is_removed_and_what_is_unknown_stays(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    whole, without_content = add(store), add(store)
    folder = tmp_path / "files"
    store.path(without_content).unlink()
    for name in (".upload-1", "file-2.data", ".file-3.json.new"):
        (folder / name).write_bytes(b"x")
    (folder / "file-bad.json").write_bytes(b"{")
    again = store_in(tmp_path)
    assert again.of_tenant("alice") == [whole]
    assert {path.name for path in folder.iterdir()} == {
        f"{whole.id}.data", f"{whole.id}.json", f"{without_content.id}.json", "file-bad.json",
    }  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b"null", b"\xff", b"{}", b'"x"', "created_at", "another id"],
)  # fmt: skip
def test_one_odd_description_does_not_hide_the_others(tmp_path: Path, content: bytes | str) -> None:
    store = store_in(tmp_path)
    odd, good = add(store), add(store)
    path = tmp_path / "files" / f"{odd.id}.json"
    if isinstance(content, str):
        values = json.loads(path.read_bytes()) | ({"created_at": "7"} if content == "created_at" else {"id": "file-x"})
        content = json.dumps(values).encode()
    path.write_bytes(content)
    (tmp_path / "files" / "file-folder.json").mkdir()
    (tmp_path / "files" / "folder.data").mkdir()
    assert store_in(tmp_path).of_tenant("alice") == [good]
    assert path.read_bytes() == content and store.path(odd).exists(), "it is left as it is"


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("a.jsonl", "a.jsonl"), ("../../etc/passwd", "passwd"), ("C:\\x\\y.jsonl", "y.jsonl"), ("a\r\nb\x00", "ab"),
        ("", "file"), ("..", "file"), ("/", "file"), ("é 日.jsonl", "é 日.jsonl"), ("x" * 999, "x" * 255),
        ("\ud800a", "a"),
    ],
)  # fmt: skip
def test_names_have_no_folders_and_no_control_characters(name: str, plain: str) -> None:
    assert plain_file_name(name) == plain


def test_outputs_of_one_tenant_take_no_place_from_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are always written, so that a tenant may have more files than its share."""
    monkeypatch.setattr(file_store, "MAX_FILES", 4)
    store = store_in(tmp_path, files_bytes=100)
    (tmp_path / "journal").write_bytes(b"x" * 30)
    for number in range(6):
        shutil.copyfile(tmp_path / "journal", tmp_path / f"journal-{number}")
        store.adopt(tmp_path / f"journal-{number}", "alice", "o", "batch_output", f"file-{number}")
    assert store.number_problem("alice") == "6 files are stored, the limit is 4; delete some"
    for content in (b"x", b"x" * 49):
        store.check_room("bob")
        add(store, content, "bob")
    assert store.number_problem("bob") == "4 files are stored, the limit is 4; delete some"
