"""BatchState: the opened folder of files and batches, with what runs them; opened when it is first needed."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from chairlift.web.batch_api.batch_models import BatchModels
from chairlift.web.batch_api.batch_runner import BatchRunner
from chairlift.web.batch_api.batch_slots import BatchSlots
from chairlift.web.batch_api.batch_store import BatchStore
from chairlift.web.batch_api.disk_usage import DiskUsage
from chairlift.web.batch_api.file_store import FileStore
from chairlift.web.batch_api.files_config import FilesConfig
from chairlift.web.batch_api.in_thread import in_thread
from chairlift.web.batch_api.private_folder import PrivateFolder
from chairlift.web.batch_files.batch_run import Sender
from chairlift.web.lifecycle import leaving_error


@dataclass(frozen=True, slots=True)
class OpenFolder:
    """What the folder has.

    Attributes:
        files: the files.
        batches: the batches.
        runner: runs the batches.
    """

    files: FileStore
    batches: BatchStore
    runner: BatchRunner


class BatchState:
    """The folder of one service. Belongs to one event loop."""

    def __init__(
        self, config: FilesConfig, max_body_bytes: int, slots: BatchSlots, sender_of: Callable[[str], Sender],
        models: BatchModels,
    ) -> None:  # fmt: skip
        self._config, self._max_body_bytes, self._slots, self._sender_of = config, max_body_bytes, slots, sender_of
        self._models = models
        self._folder = PrivateFolder(config.files_folder)
        self._opening = asyncio.Lock()
        self._open: OpenFolder | None = None
        self._is_closed = False

    @property
    def has_earlier_files(self) -> bool:
        """Whether the folder exists, from an earlier start."""
        return self._folder.path is not None and self._folder.path.is_dir()

    async def open(self) -> OpenFolder:
        """Open the folder at the first call, and go on with the batches in it.

        Raises Unavailable, also after close().
        """
        async with self._opening:
            if self._is_closed:
                raise leaving_error()
            if self._open is None:
                files, batches = await in_thread(self._read)
                runner = BatchRunner(
                    batches, files, self._slots, self._sender_of, self._models,
                    max_requests=self._config.max_batch_requests, max_body_bytes=self._max_body_bytes,
                )  # fmt: skip
                self._open = OpenFolder(files, batches, runner)
                for batch in batches.unfinished():
                    runner.start(batch)
            return self._open

    def abort_all(self) -> None:
        """Abort the open requests of all batches."""
        if self._open is not None:
            self._open.runner.abort_all()

    async def close(self) -> None:
        """Stop the batches where they are, and release the folder. May be called more than once."""
        async with self._opening:
            self._is_closed = True
            if self._open is not None:
                await self._open.runner.close()
            await in_thread(self._folder.close)

    def _read(self) -> tuple[FileStore, BatchStore]:
        path = self._folder.open()
        usage = DiskUsage(self._config.files_bytes)
        return FileStore(path / "files", self._config, usage), BatchStore(path / "batches", usage)
