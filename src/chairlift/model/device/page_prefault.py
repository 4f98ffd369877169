"""PagePrefaulter: populates the pages of a large cache in the background, in the order in which blocks are allocated.

Clearing ten gigabytes takes two seconds, and 20 s on a virtual machine whose host must free memory first. A server can
serve requests meanwhile: the first write populates a page that the thread has not reached. Memory that the kernel
promised and cannot provide is reported within minutes of the start, not hours later.

While steps are computed the thread populates a chunk only now and then, however low its priority is: once it has a
processor it keeps it for milliseconds, and every thread of a step waits for the thread that needs that processor.
"""

import ctypes
import errno
import functools
import logging
import mmap
import os
import threading
import time
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from chairlift.core.cpu_affinity_and_priority import lower_priority
from chairlift.model.device.huge_page_tensors import HUGE_PAGE, host_zeros, huge_pages

log = logging.getLogger(__name__)

MADV_POPULATE_WRITE = 23  # Linux 5.14; Python has no name for it
CHUNK_BYTES = HUGE_PAGE
"""Bytes populated in one call, which cannot be interrupted."""

BUSY_SECONDS = 1.0
"""Seconds after the start of a step in which another step is expected, and the thread pauses after each chunk."""

PAUSES = 30
"""Length of such a pause, in times of the chunk's own duration (half a millisecond; 15 where a host finds memory)."""

NICENESS = 19
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
    """A thread that populates the pages of tensors, one chunk of each in turn, and pauses while steps are computed."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        """Create the thread for tensors that begin on a page, or views into such; small tensors are skipped."""
        views = {each.untyped_storage().data_ptr(): each for each in tensors}
        large = [each for each in views.values() if each.untyped_storage().nbytes() >= HUGE_PAGE]
        self._storages = [each.untyped_storage() for each in large]
        self._block_bytes = [each.stride(0) * each.element_size() for each in large]
        self._num_kept: int | None = None
        self._stopped = threading.Event()
        self._step_began = -BUSY_SECONDS
        self._is_awaited = False
        self._thread = threading.Thread(target=self._run, name="chairlift-populate", daemon=True)

    def start(self) -> None:
        """Start the thread, if a tensor is large enough and the kernel supports it."""
        if self._storages and can_populate():
            self._thread.start()

    def pause_for_step(self) -> None:
        """Pause after each chunk for the next BUSY_SECONDS."""
        self._step_began = time.monotonic()

    def release(self, num_kept: int) -> int:
        """Return the pages of all but the first entries of each tensor to the system; returns bytes.

        The entries are zeros afterwards. The next write to a page populates it again; the thread does not.
        """
        self._num_kept = num_kept
        madvise, released = _madvise(), 0
        for storage, size in zip(self._storages, self._block_bytes, strict=True):
            begin = -(-(storage.data_ptr() + num_kept * size) // HUGE_PAGE) * HUGE_PAGE
            length = (storage.data_ptr() + storage.nbytes()) // HUGE_PAGE * HUGE_PAGE - begin
            if length > 0 and madvise(begin, length, mmap.MADV_DONTNEED) == 0:
                released += length
        return released

    def wait(self) -> None:
        """Wait until every page is populated; the thread stops pausing."""
        self._is_awaited = True
        if self._thread.ident is not None:
            self._thread.join()

    def stop(self) -> None:
        """Stop the thread after its current chunk; the memory may be freed afterwards."""
        self._stopped.set()
        self.wait()
        self._storages.clear()

    def _run(self) -> None:
        lower_priority([threading.get_native_id()], NICENESS)
        madvise = _madvise()
        longest = max(storage.nbytes() for storage in self._storages)
        for offset in range(0, longest, CHUNK_BYTES):
            for storage, block_bytes in zip(self._storages, self._block_bytes, strict=True):
                size = min(CHUNK_BYTES, storage.nbytes() - offset)
                if self._num_kept is not None and offset >= self._num_kept * block_bytes:
                    continue
                began = time.monotonic()
                while size > 0 and madvise(storage.data_ptr() + offset, size, MADV_POPULATE_WRITE) != 0:
                    if (code := ctypes.get_errno()) not in AGAIN:
                        log.warning(
                            "cannot populate the KV cache, memory that the kernel promised is missing: %s",
                            os.strerror(code),
                        )
                        return
                    if self._stopped.is_set():
                        return
                ended = time.monotonic()
                if not self._is_awaited and ended - self._step_began < BUSY_SECONDS:
                    self._stopped.wait(PAUSES * (ended - began))
                if self._stopped.is_set():
                    return


def _madvise() -> Any:
    """Return the C library's function; unlike mmap's own, it releases Python's lock."""
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return madvise
