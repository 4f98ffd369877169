"""FileStore: the uploaded files and the outputs of batches, each tenant's own, in a folder."""

import contextlib
import logging
import os
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from chairlift.core.errors import BodyTooLarge, InvalidRequest, NotFound
from chairlift.protocol.field_check import shown_id
from chairlift.web.batch_api.disk_usage import DiskUsage, num_counted, tenant_share
from chairlift.web.batch_api.files_config import FilesConfig
from chairlift.web.batch_api.private_folder import storage_error, write_atomically

log = logging.getLogger(__name__)

MAX_FILES = 10_000
"""Files of all tenants together, at most, and twice those of one with a key; outputs are always written."""

MAX_FILE_NAME_CHARS = 255


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

    def __init__(
        self, folder: Path, config: FilesConfig, usage: DiskUsage | None = None, now: Callable[[], float] = time.time
    ) -> None:  # fmt: skip
        """Read what the folder has, and remove what an interrupted upload has left.

        Args:
            folder: the folder.
            config: limits of a file and of all.
            usage: counts the bytes of all files and batches; its own by default.
            now: seconds since 1970.

        Raises Unavailable.
        """
        self._folder, self._config, self._now = folder, config, now
        self._usage = DiskUsage(config.files_bytes) if usage is None else usage
        self._files: dict[str, StoredFile] = {}
        self._num_files: Counter[str] = Counter()
        self._lock = threading.Lock()  # of the two above
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            self._load()
        except OSError as error:
            raise storage_error(error) from error

    def check_room(self, tenant: str) -> None:
        """Raise BodyTooLarge or InvalidRequest unless the tenant may have another file."""
        if problem := self._usage.problem(tenant, 1):
            raise BodyTooLarge(problem)
        if problem := self.number_problem(tenant):
            raise InvalidRequest(problem)

    def number_problem(self, tenant: str) -> str:
        """Return why the tenant may not have another file because of their number, "" where it may."""
        with self._lock:
            num_own = self._num_files[tenant]
            num_files = num_counted(self._num_files, tenant, MAX_FILES)
        if num_files >= MAX_FILES:
            return f"{num_files} files are stored, the limit is {MAX_FILES}; delete some"
        if num_own >= (share := tenant_share(tenant, MAX_FILES)):
            return f"you have {num_own} files, the limit is {share}; delete some"
        return ""

    def reserve(self, name: str, tenant: str, num_bytes: int) -> None:
        """Count the bytes of a file that is being written; for NewFile. Raises BodyTooLarge."""
        if num_bytes > self._config.max_file_bytes:
            raise BodyTooLarge(f"the file has {num_bytes} bytes or more, the limit is {self._config.max_file_bytes}")
        if problem := self._usage.reserve(name, tenant, num_bytes):
            raise BodyTooLarge(problem)

    def begin(self, tenant: str) -> "NewFile":
        """Return a file of a tenant that is written piece by piece."""
        return NewFile(self, self._folder, self._usage, tenant)

    def adopt(self, path: Path, tenant: str, file_name: str, purpose: str, file_id: str) -> StoredFile:
        """Store the content of a whole file, which is not copied where the disk has hard links.

        An output is always stored: no limit applies. Raises OSError.
        """
        linked = self._folder / f".upload-{secrets.token_hex(12)}"
        try:
            try:
                os.link(path, linked)
            except OSError:  # another file system, or one without links
                shutil.copyfile(path, linked)
            return self.add(linked, linked.stat().st_size, tenant, file_name, purpose, file_id)
        finally:
            with contextlib.suppress(OSError):
                linked.unlink(missing_ok=True)

    def get(self, tenant: str, file_id: str, param: str = "file_id") -> StoredFile:
        """Return a tenant's file. Raises NotFound."""
        file = self._files.get(file_id)
        if file is None or file.tenant != tenant:
            raise file_not_found(file_id, param)
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
            self._forget(file_id)

    def add(self, written: Path, num_bytes: int, tenant: str, file_name: str, purpose: str, file_id: str) -> StoredFile:
        """Take over a written file; for NewFile. Raises OSError."""
        file = StoredFile(
            file_id, tenant, num_bytes, int(self._now()), plain_file_name(file_name), purpose
        )  # fmt: skip
        written.replace(self.path(file))
        try:
            write_atomically(self._described(file.id), orjson.dumps(asdict(file)))
        except OSError:
            with contextlib.suppress(OSError):
                self.path(file).unlink(missing_ok=True)
            raise
        with self._lock:
            self._forget(file.id)
            self._keep(file)
        return file

    def _keep(self, file: StoredFile) -> None:
        self._files[file.id] = file
        self._num_files[file.tenant] += 1
        status = self.path(file).stat()
        self._usage.set(file.id, file.tenant, file.num_bytes, (status.st_dev, status.st_ino))

    def _forget(self, file_id: str) -> None:
        if (file := self._files.pop(file_id, None)) is not None:
            self._num_files[file.tenant] -= 1
            self._usage.remove(file_id)

    def _described(self, file_id: str) -> Path:
        return self._folder / f"{file_id}.json"

    def _load(self) -> None:
        files: list[StoredFile] = []
        for path in self._folder.glob("file-*.json"):
            try:
                file = _read_stored_file(orjson.loads(path.read_bytes()), path.stem)
                if self.path(file).is_file():
                    files.append(file)
            except (OSError, ValueError) as error:
                log.warning("%s is no description of a file; it is left as it is: %s", path, error)
        for file in sorted(files, key=lambda file: (file.created_at, file.id)):
            self._keep(file)
        for path in (*self._folder.glob(".*.new"), *self._folder.glob(".upload-*"), *self._folder.glob("*.data")):
            if path.suffix != ".data" or not self._described(path.stem).exists():
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)


class NewFile:
    """A file that is being written. Leaving its context without commit() removes it. Its calls block."""

    def __init__(self, store: FileStore, folder: Path, usage: DiskUsage, tenant: str) -> None:
        self._store, self._usage, self._tenant = store, usage, tenant
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
        self._usage.remove(self._path.name)
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        """Append to the file. Raises BodyTooLarge, and Unavailable where the disk is full."""
        self._store.reserve(self._path.name, self._tenant, self.num_bytes + len(data))
        self.num_bytes += len(data)
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise storage_error(error) from error

    def commit(self, file_name: str, purpose: str) -> StoredFile:
        """Store the file with a new id. Raises InvalidRequest for too many files, and Unavailable."""
        if problem := self._store.number_problem(self._tenant):
            raise InvalidRequest(problem)
        try:
            os.fsync(self._file.fileno())
            return self._store.add(self._path, self.num_bytes, self._tenant, file_name, purpose, new_file_id())
        except OSError as error:
            raise storage_error(error) from error


def _read_stored_file(values: Any, file_id: str) -> StoredFile:
    """Return the file that a description on the disk has. Raises ValueError."""
    names = {"id": str, "tenant": str, "num_bytes": int, "created_at": int, "file_name": str, "purpose": str}
    if not isinstance(values, dict):
        raise ValueError("it is no object")
    for name, kind in names.items():
        if type(values.get(name)) is not kind:
            raise ValueError(f"{name} is missing or of another type")
    if values["id"] != file_id:
        raise ValueError("it has the id of another file")
    return StoredFile(**{name: values[name] for name in names})


def file_not_found(file_id: str, param: str = "file_id") -> NotFound:
    """Return the error for a file that is not there, or not any more."""
    return NotFound(f"there is no file {shown_id(file_id)}: it was deleted, or it is of another server", param=param)


def new_file_id() -> str:
    """Return the id of a new file."""
    return f"file-{secrets.token_hex(12)}"


def plain_file_name(name: str) -> str:
    """Return a client's name of a file without folders and control characters, `file` where nothing is left."""
    last = name.replace("\\", "/").rpartition("/")[2]
    plain = "".join(char for char in last if char.isprintable() and not "\ud800" <= char <= "\udfff")
    return plain.strip(" .")[:MAX_FILE_NAME_CHARS] or "file"
