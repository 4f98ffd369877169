"""PagePrefaulter: populates the pages of a large cache while the engine is idle, a bounded amount ahead of their use.

Clearing a gigabyte takes 0.2 s, and 2 s on a virtual machine whose host must free memory first; a step would wait for
it. Memory that no block needs stays free for other programs. The first write populates a page that the thread has not
reached.

Beside steps the thread would take a processor from one of their threads, for which all others wait, and if it is
displaced while the kernel populates for it, whatever else changes the process's memory waits until it has a processor
again. So it works only while no step is expected; each step populates one chunk itself (ADR 0063).
"""

import ctypes
import errno
import functools
import logging
import math
import mmap
import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from chairlift.model.device.huge_page_tensors import HUGE_PAGE, host_zeros, huge_pages

log = logging.getLogger(__name__)

MADV_POPULATE_WRITE = 23  # Linux 5.14; Python has no name for it
CHUNK_BYTES = HUGE_PAGE
"""Bytes populated in one call, which cannot be interrupted."""

CHUNKS_AHEAD = 1
"""Chunks of each tensor that are populated behind those with blocks in use."""

BUSY_SECONDS = 1.0
"""Seconds after a step in which another one is expected, and the thread pauses."""

AGAIN = (errno.EAGAIN, errno.EINTR)


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return zeros in host memory for a PagePrefaulter; populated at once where the kernel cannot populate later.

    Raises MemoryError or OSError when memory is short.
    """
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    if num_bytes < HUGE_PAGE or not can_populate():
        return host_zeros(shape, dtype)
    return huge_pages(num_bytes).view(dtype).view(shape)


@functools.cache
def can_populate() -> bool:
    """Return whether the kernel supports MADV_POPULATE_WRITE."""
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        page.madvise(MADV_POPULATE_WRITE)
    except (OSError, ValueError, AttributeError):
        return False
    return True


class PagePrefaulter:
    """Populates the pages of tensors a bounded amount ahead of the entries in use.

    Chunks are populated in the order of their use: the first one of each tensor, then the second ones. A step populates
    one of them, and while there are no steps a thread the rest of those wanted; then it ends. All methods are called by
    one thread.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        """Hold tensors that begin on a page, or views into such; small tensors are skipped."""
        views = {each.untyped_storage().data_ptr(): each for each in tensors}
        large = [each for each in views.values() if each.untyped_storage().nbytes() >= HUGE_PAGE]
        self._storages = [each.untyped_storage() for each in large]
        self._entry_bytes = [each.stride(0) * each.element_size() for each in large]
        self._smallest_entry, self._largest_entry = min(self._entry_bytes, default=0), max(self._entry_bytes, default=0)
        self._longest = max((each.nbytes() for each in self._storages), default=0)
        self._changed = threading.Condition()
        self._num_used = 0
        self._num_chunks = 0  # of all tensors, in the order of their use; populated, or about to be
        self._is_stopped, self._is_awaited = not large, False
        self._idle_since = -BUSY_SECONDS  # infinite within a step
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to populate, if a tensor is large enough and the kernel supports it."""
        with self._changed:
            self._is_stopped = not self._storages or not can_populate()
            self._populate_more()

    def begin_step(self, num_entries: int) -> None:
        """Populate one chunk if one is wanted behind the first `num_entries` entries; the thread pauses meanwhile."""
        self._idle_since = math.inf
        with self._changed:
            # Earlier steps have written the entries that they used.
            self._num_chunks = max(self._num_chunks, self._num_whole_chunks(self._num_used))
            self._num_used = max(self._num_used, num_entries)
            chunk = self._claim_chunk()
            self._populate_more()
        if chunk is not None:
            self._populate(chunk)

    def end_step(self) -> None:
        """Let the thread go on in BUSY_SECONDS, if there is no other step."""
        self._idle_since = time.monotonic()

    def release(self, num_kept: int) -> int:
        """Return the pages of all but the first entries of each tensor to the system; returns bytes.

        The entries are zeros afterwards. The next use of an entry populates its pages again.
        """
        released = 0
        with self._changed:
            self._num_used = min(self._num_used, num_kept)
            self._num_chunks = min(self._num_chunks, self._num_whole_chunks(num_kept))
            for storage, size in zip(self._storages, self._entry_bytes, strict=True):
                begin = -(-(storage.data_ptr() + num_kept * size) // HUGE_PAGE) * HUGE_PAGE
                length = (storage.data_ptr() + storage.nbytes()) // HUGE_PAGE * HUGE_PAGE - begin
                if length > 0 and _madvise()(begin, length, mmap.MADV_DONTNEED) == 0:
                    released += length
            self._populate_more()
        return released

    def wait(self) -> None:
        """Wait until the pages ahead of the entries in use are populated; the thread does not pause meanwhile."""
        with self._changed:
            self._is_awaited = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._thread is None)
            self._is_awaited = False

    def stop(self) -> None:
        """Stop the thread after its current chunk; the memory may be freed afterwards."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._thread is None)
        self._storages.clear()
        self._entry_bytes.clear()

    def _populate_more(self) -> None:
        """Start the thread if chunks are missing and it does not run; the caller holds the lock."""
        if self._thread is None and self._is_chunk_wanted():
            thread = threading.Thread(target=self._run, name="chairlift-populate", daemon=True)
            with suppress(RuntimeError):  # no more threads: the steps populate
                thread.start()
                self._thread = thread

    def _num_whole_chunks(self, num_entries: int) -> int:
        """Return how many chunks of all tensors lie within the first entries of each."""
        return num_entries * self._smallest_entry // CHUNK_BYTES * len(self._storages)

    def _is_chunk_wanted(self) -> bool:
        """Return whether there is another chunk to populate; the caller holds the lock."""
        used = self._num_used * self._largest_entry
        of_each = min(-(-used // CHUNK_BYTES) + CHUNKS_AHEAD, -(-self._longest // CHUNK_BYTES))
        return not self._is_stopped and self._num_chunks < of_each * len(self._storages)

    def _claim_chunk(self) -> int | None:
        """Return the number of the chunk that the caller populates, or None; the caller holds the lock."""
        if not self._is_chunk_wanted():
            return None
        self._num_chunks += 1
        return self._num_chunks - 1

    def _run(self) -> None:
        try:
            while (chunk := self._wait_for_chunk()) is not None:
                self._populate(chunk)
        finally:
            with self._changed:
                if self._thread is threading.current_thread():  # an error has ended it
                    self._thread, self._is_stopped = None, True
                    self._changed.notify_all()

    def _wait_for_chunk(self) -> int | None:
        """Claim a chunk when no step is expected; None when the thread is to end."""
        with self._changed:
            while not self._is_awaited and not self._is_stopped and (seconds := self._busy_seconds()) > 0:
                self._changed.wait(seconds)
            if (chunk := self._claim_chunk()) is None:
                self._thread = None
                self._changed.notify_all()
            return chunk

    def _busy_seconds(self) -> float:
        """Return the seconds for which a step is expected from now on, at most BUSY_SECONDS."""
        return min(self._idle_since + BUSY_SECONDS - time.monotonic(), BUSY_SECONDS)

    def _populate(self, chunk: int) -> None:
        """Populate a chunk; what was stopped, or lacks memory, populates no other one."""
        row, index = divmod(chunk, len(self._storages))
        storage, offset = self._storages[index], row * CHUNK_BYTES
        size = min(CHUNK_BYTES, storage.nbytes() - offset)
        while size > 0 and _madvise()(storage.data_ptr() + offset, size, MADV_POPULATE_WRITE) != 0:
            if (code := ctypes.get_errno()) not in AGAIN:
                log.warning(
                    "cannot populate the KV cache, memory that the kernel promised is missing: %s", os.strerror(code)
                )
                self._is_stopped = True
            if self._is_stopped:
                return


@functools.cache
def _madvise() -> Any:
    """Return the C library's function; unlike mmap's own, it releases Python's lock."""
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return madvise
