"""FileStore: the uploaded files and the outputs of batches, each tenant's own, in a folder."""

import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from chairlift.core.errors import BodyTooLarge, InvalidRequest, NotFound
from chairlift.web.batch_api.files_config import FilesConfig
from chairlift.web.batch_api.private_folder import storage_error, write_atomically

log = logging.getLogger(__name__)

MAX_FILES = 10_000
"""Files of all tenants together, at most; outputs of batches are always written."""

MAX_FILE_NAME_CHARS = 255
SHOWN_ID_CHARS = 80


@dataclass(frozen=True, slots=True)
class StoredFile:
    """What is known of one file.

    Attributes:
        id: its id, `file-` and hexadecimal digits.
        tenant: who may use it.
        num_bytes: its size.
        created_at: seconds since 1970.
        file_name: the client's name of it, without folders.
        purpose: what the client has uploaded it for.
    """

    id: str
    tenant: str
    num_bytes: int
    created_at: int
    file_name: str
    purpose: str

    def to_object(self) -> dict[str, Any]:
        """Return the file object of OpenAI's API."""
        return {
            "id": self.id, "object": "file", "bytes": self.num_bytes, "created_at": self.created_at,
            "filename": self.file_name, "purpose": self.purpose, "status": "processed", "status_details": None,
            "expires_at": None,
        }  # fmt: skip


class FileStore:
    """The files of a folder. Any thread may use it; its calls block for short accesses of the disk."""

    def __init__(self, folder: Path, config: FilesConfig, now: Callable[[], float] = time.time) -> None:
        """Read what the folder has, and remove what an interrupted upload has left. Raises Unavailable."""
        self._folder, self._config, self._now = folder, config, now
        self._files: dict[str, StoredFile] = {}
        self._num_open_bytes = 0
        self._lock = threading.Lock()  # of the two above
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            self._load()
        except OSError as error:
            raise storage_error(error) from error

    @property
    def num_bytes(self) -> int:
        """Bytes of all files, those that are being written included."""
        with self._lock:
            return self._used_bytes()

    def check_room(self, num_bytes: int) -> None:
        """Raise BodyTooLarge or InvalidRequest unless there is room for another file of this size."""
        with self._lock:
            self._check(num_bytes, self._used_bytes())

    def reserve(self, written: int, more: int, *, is_limited: bool = True) -> None:
        """Count `more` bytes of a file that has `written` ones; for NewFile. Raises as check_room() does."""
        with self._lock:
            if is_limited:
                self._check(written + more, self._used_bytes() - written)
            self._num_open_bytes += more

    def _used_bytes(self) -> int:
        return sum(each.num_bytes for each in self._files.values()) + self._num_open_bytes

    def _check(self, num_bytes: int, used: int) -> None:
        config = self._config
        if num_bytes > config.max_file_bytes:
            raise BodyTooLarge(f"the file has {num_bytes} bytes or more, the limit is {config.max_file_bytes}")
        if used + num_bytes > config.files_bytes:
            raise BodyTooLarge(
                f"the stored files have {used} bytes and this one {num_bytes} or more, the limit of their sum is "
                f"{config.files_bytes}; delete files that are not needed any more"
            )
        if len(self._files) >= MAX_FILES:
            raise InvalidRequest(f"{len(self._files)} files are stored, the limit is {MAX_FILES}; delete some")

    def begin(self, *, is_limited: bool = True) -> "NewFile":
        """Return a file that is written piece by piece; without `is_limited` it may exceed the limits."""
        return NewFile(self, self._folder, is_limited=is_limited)

    def get(self, tenant: str, file_id: str, param: str = "file_id") -> StoredFile:
        """Return a tenant's file. Raises NotFound."""
        file = self._files.get(file_id)
        if file is None or file.tenant != tenant:
            shown = "".join(char for char in file_id[:SHOWN_ID_CHARS] if " " < char <= "~")
            raise NotFound(f"there is no file {shown}: it was deleted, or it is of another server", param=param)
        return file

    def of_tenant(self, tenant: str, purpose: str | None = None) -> list[StoredFile]:
        """Return a tenant's files, the oldest first."""
        with self._lock:
            files = [*self._files.values()]
        return [each for each in files if each.tenant == tenant and purpose in (None, each.purpose)]

    def path(self, file: StoredFile) -> Path:
        """Return where the content of a file is."""
        return self._folder / f"{file.id}.data"

    def delete(self, tenant: str, file_id: str) -> None:
        """Delete a file. Raises NotFound, and Unavailable where the disk fails; then the file stays."""
        file = self.get(tenant, file_id)
        try:
            self._described(file.id).unlink(missing_ok=True)
            self.path(file).unlink(missing_ok=True)
        except OSError as error:
            raise storage_error(error) from error
        with self._lock:
            self._files.pop(file_id, None)

    def add(self, written: Path, num_bytes: int, tenant: str, file_name: str, purpose: str, file_id: str) -> StoredFile:
        """Take over a written file; for NewFile. Raises OSError."""
        file = StoredFile(
            file_id or new_file_id(), tenant, num_bytes, int(self._now()), plain_file_name(file_name), purpose
        )  # fmt: skip
        written.replace(self.path(file))
        try:
            write_atomically(self._described(file.id), orjson.dumps(asdict(file)))
        except OSError:
            with contextlib.suppress(OSError):
                self.path(file).unlink(missing_ok=True)
            raise
        with self._lock:
            self._files.pop(file.id, None)
            self._files[file.id] = file
        return file

    def _described(self, file_id: str) -> Path:
        return self._folder / f"{file_id}.json"

    def _load(self) -> None:
        files: list[StoredFile] = []
        names = {field.name for field in fields(StoredFile)}
        for path in self._folder.glob("file-*.json"):
            try:
                values = orjson.loads(path.read_bytes())
                file = StoredFile(**{name: values[name] for name in names})
            except (orjson.JSONDecodeError, KeyError, TypeError):
                log.warning("%s is no description of a file; it is left as it is", path)
                continue
            if self.path(file).is_file():
                files.append(file)
        self._files = {file.id: file for file in sorted(files, key=lambda file: (file.created_at, file.id))}
        for path in (*self._folder.glob(".*.new"), *self._folder.glob(".upload-*"), *self._folder.glob("*.data")):
            if path.suffix != ".data" or not self._described(path.stem).exists():
                path.unlink(missing_ok=True)


class NewFile:
    """A file that is being written. Leaving its context without commit() removes it. Its calls block."""

    def __init__(self, store: FileStore, folder: Path, *, is_limited: bool) -> None:
        self._store, self._is_limited = store, is_limited
        self._path = folder / f".upload-{secrets.token_hex(12)}"
        self.num_bytes = 0

    def __enter__(self) -> Self:
        try:
            self._file = self._path.open("xb", buffering=0)
        except OSError as error:
            raise storage_error(error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._store.reserve(self.num_bytes, -self.num_bytes, is_limited=False)
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        """Append to the file. Raises BodyTooLarge, InvalidRequest, and Unavailable where the disk is full."""
        self._store.reserve(self.num_bytes, len(data), is_limited=self._is_limited)
        self.num_bytes += len(data)
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise storage_error(error) from error

    def commit(self, tenant: str, file_name: str, purpose: str, file_id: str = "") -> StoredFile:
        """Store the file for a tenant, with a new id unless there is one. Raises Unavailable."""
        try:
            os.fsync(self._file.fileno())
            return self._store.add(self._path, self.num_bytes, tenant, file_name, purpose, file_id)
        except OSError as error:
            raise storage_error(error) from error


def new_file_id() -> str:
    """Return the id of a new file."""
    return f"file-{secrets.token_hex(12)}"


def plain_file_name(name: str) -> str:
    """Return a client's name of a file without folders and control characters, `file` where nothing is left."""
    last = name.replace("\\", "/").rpartition("/")[2]
    plain = "".join(char for char in last if char.isprintable() and not "\ud800" <= char <= "\udfff")
    return plain.strip(" .")[:MAX_FILE_NAME_CHARS] or "file"
