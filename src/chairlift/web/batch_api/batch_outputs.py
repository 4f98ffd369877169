"""write_outputs: makes the responses of a batch the files of its outputs."""

import contextlib
import hashlib
from dataclasses import dataclass
from typing import Any

from chairlift.protocol.batches.file_fields import OUTPUT_PURPOSE
from chairlift.web.batch_api.batch_store import BatchStore
from chairlift.web.batch_api.file_store import FileStore
from chairlift.web.batch_api.response_journal import ResponseJournal
from chairlift.web.batch_api.stored_batch import StoredBatch
from chairlift.web.batch_files.batch_lines import BatchFile, BatchLine, IsStopped
from chairlift.web.batch_files.batch_run import BatchResponse, output_entry


@dataclass(frozen=True, slots=True)
class BatchOutputs:
    """What a batch has at its end.

    Attributes:
        total, completed, failed: as of StoredBatch.
        output_file_id, error_file_id: ids of the files; None for none.
    """

    total: int
    completed: int
    failed: int
    output_file_id: str | None = None
    error_file_id: str | None = None

    def assign(self, batch: StoredBatch) -> None:
        """Write it to a batch."""
        batch.total, batch.completed, batch.failed = self.total, self.completed, self.failed
        batch.output_file_id, batch.error_file_id = self.output_file_id, self.error_file_id


def write_outputs(
    store: BatchStore, files: FileStore, batch: StoredBatch, expired: BatchFile | None, max_requests: int = 0,
    is_stopped: IsStopped = lambda: False,
) -> BatchOutputs:  # fmt: skip
    """Make the responses of a batch files, for which the disk needs no further room where it has hard links.

    Can be repeated after a failure, and after the end of the process.

    Args:
        store: where the responses are.
        files: takes the outputs.
        batch: the batch, which is not changed.
        expired: the requests of a batch that has expired: those without a response become errors; None otherwise.
        max_requests: how many of them are read, at most.
        is_stopped: once it returns True the rest is left for another call, and the result is of no use.

    Raises OSError and Unavailable.
    """
    paths = store.responses_path(batch), store.errors_path(batch)
    journal = ResponseJournal(*paths)
    journal.open(is_stopped)
    with contextlib.closing(journal):
        for line in () if expired is None else expired.lines(max_requests, is_stopped):
            if not is_stopped() and line.custom_id not in journal.done:
                journal.append(line.custom_id, _expired_entry(line))
        num_done, num_errors, sizes = len(journal.done), journal.num_errors, journal.num_bytes
    if is_stopped():
        return BatchOutputs(batch.total, batch.completed, batch.failed)
    ids: list[str | None] = []
    for path, num_bytes, kind in zip(paths, sizes, ("output", "error"), strict=True):
        file_id = _output_file_id(batch, kind) if num_bytes else None
        if file_id is not None:
            files.adopt(path, batch.tenant, f"{batch.id}_{kind}.jsonl", OUTPUT_PURPOSE, file_id)
        ids.append(file_id)
    total = max(batch.total, num_done)
    return BatchOutputs(total, num_done - num_errors, num_errors, *ids)


def _expired_entry(line: BatchLine) -> dict[str, Any]:
    """Return the line of the error file for a request without a response at the end of the window."""
    error = {"code": "batch_expired", "message": "the batch expired before this request had a response"}
    return output_entry(line, BatchResponse(0, "", "")) | {"error": error}


def _output_file_id(batch: StoredBatch, kind: str) -> str:
    """Return the id of an output, the same each time: what an interruption has left is replaced."""
    return f"file-{hashlib.sha256(f'{batch.id} {kind}'.encode()).hexdigest()[:24]}"
