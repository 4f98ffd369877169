"""ResponseJournal: the responses of a running batch, in the two files that its outputs become.

Whole responses of a status of 2xx are appended to the one, all others to the other. After an interruption, also of the
power, what follows the last whole line of a file is removed, and its requests are sent again.
"""

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from chairlift.web.batch_files.custom_id_set import CustomIdSet
from chairlift.web.batch_files.output_journal import (
    append_whole,
    is_output_line,
    is_success,
    parse_output_line,
    writable_entry,
)


class ResponseJournal:
    """Two files, open for appending. Its calls block, so threads call all but append().

    Attributes:
        done: custom ids of the requests that have a final response.
        num_errors: number of responses that are an error.
    """

    def __init__(self, outputs_path: Path, errors_path: Path) -> None:
        """Describe the files; open() opens them."""
        self.done = CustomIdSet()
        self.num_errors = 0
        self._paths = (outputs_path, errors_path)
        self._files: list[IO[bytes]] = []

    def open(self, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Open or create the files, and read what they have. Raises OSError; then they are closed.

        Once `is_stopped`, which is called for each response, the rest is neither read nor changed.
        """
        try:
            for path in self._paths:
                self._files.append(path.open("a+b", buffering=0))
                self._recover(path, is_stopped)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def count(self, is_stopped: Callable[[], bool] = lambda: False) -> tuple[int, int]:
        """Return the number of responses in the two files, which may be missing and need not be open. Raises OSError.

        Only the beginnings of the lines are looked at, and no name is kept; `is_stopped` as for open().
        """
        outputs, errors = (_num_responses(path, is_stopped) for path in self._paths)
        return outputs, errors

    @property
    def num_bytes(self) -> tuple[int, int]:
        """Sizes of the two files."""
        outputs, errors = (os.fstat(file.fileno()).st_size for file in self._files)
        return outputs, errors

    def append(self, custom_id: str, entry: Mapping[str, Any]) -> None:
        """Write a final response. Raises OSError; the request is not done then, and the file is as before."""
        entry, text = writable_entry(entry)
        is_error = not is_success(entry)
        append_whole(self._files[is_error].fileno(), text)
        self.done.add(custom_id)
        self.num_errors += is_error

    def sync(self) -> None:
        """Bring the content to the disk, so that a power failure does not take it. Raises OSError."""
        for file in self._files:
            os.fsync(file.fileno())

    def close(self) -> None:
        """Close the files, their content on the disk. May be called more than once."""
        for file in self._files:
            if not file.closed:
                with contextlib.suppress(OSError):
                    os.fsync(file.fileno())
                file.close()

    def _recover(self, path: Path, is_stopped: Callable[[], bool]) -> None:
        """Read the whole lines up to the first that is none, and remove the rest."""
        end = 0
        with path.open("rb") as file:
            for line in file:
                if is_stopped():
                    return
                entry = parse_output_line(line) if line.endswith(b"\n") else None
                if entry is None:
                    break
                end += len(line)
                self.done.add(entry["custom_id"])
                self.num_errors += not is_success(entry)
        self._files[-1].truncate(end)


def _num_responses(path: Path, is_stopped: Callable[[], bool]) -> int:
    num_lines = 0
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        for line in file:
            if is_stopped() or not is_output_line(line):
                break
            num_lines += 1
    return num_lines
