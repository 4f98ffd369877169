"""Populating: pages of a large cache are made real behind the start, in the order in which blocks are handed out.

Ten gigabytes take two seconds to clear, and twenty on a virtual machine whose host has to find them first. A server can
answer meanwhile: a page that is written to before its turn becomes real at that moment. What the kernel has promised
and cannot give shows within minutes of the start, and not in the middle of the night.

While steps are computed there is a piece now and then only, however low the thread's priority is: once it has a
processor, it keeps it for milliseconds, and every thread of a step waits for the one that was to have it.
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

import torch
from torch import Tensor

from chairlift.core.cpu_affinity import lower_priority
from chairlift.model.runner.host_memory import HUGE_PAGE, host_zeros, huge_pages

log = logging.getLogger(__name__)

MADV_POPULATE_WRITE = 23  # Linux 5.14; Python has no name for it
CHUNK_BYTES = HUGE_PAGE
"""That is populated in one call, which nobody can interrupt."""

BUSY_SECONDS = 1.0
"""After a step begins, in which another one is to be expected."""

PAUSES = 30
"""Times as long as a piece took is paused behind it then: half a millisecond, or 15 where a host has to find memory."""

NICENESS = 19
AGAIN = (errno.EAGAIN, errno.EINTR)


def promised_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return zeros on the host for a Populator to make real; where the kernel cannot do that, they are real already.

    Raises MemoryError or OSError when there is not so much.
    """
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    if num_bytes < HUGE_PAGE or not can_populate():
        return host_zeros(shape, dtype)
    return huge_pages(num_bytes).view(dtype).view(shape)


@functools.cache
def can_populate() -> bool:
    """Whether the kernel knows how."""
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        page.madvise(MADV_POPULATE_WRITE)
    except (OSError, ValueError, AttributeError):
        return False
    return True


class Populator:
    """A thread that makes the pages of tensors real, a piece of each in turn, and gives way to whoever computes."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        """Take tensors that begin on a page, or views into such; small ones are left alone."""
        storages = {storage.data_ptr(): storage for storage in (each.untyped_storage() for each in tensors)}
        self._storages = [each for each in storages.values() if each.nbytes() >= HUGE_PAGE]
        self._stopped = threading.Event()
        self._step_began = -BUSY_SECONDS
        self._is_awaited = False
        self._thread = threading.Thread(target=self._run, name="chairlift-populate", daemon=True)

    def start(self) -> None:
        """Begin, where there is anything to do."""
        if self._storages and can_populate():
            self._thread.start()

    def step_begins(self) -> None:
        """Do less for a while."""
        self._step_began = time.monotonic()

    def wait(self) -> None:
        """Return when every page is there, which is as soon as possible from now on."""
        self._is_awaited = True
        if self._thread.ident is not None:
            self._thread.join()

    def stop(self) -> None:
        """Stop where it is; afterwards the memory may go."""
        self._stopped.set()
        self.wait()
        self._storages.clear()

    def _run(self) -> None:
        lower_priority([threading.get_native_id()], NICENESS)
        madvise = ctypes.CDLL(None, use_errno=True).madvise  # which, unlike mmap's own, lets other threads run
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        longest = max(storage.nbytes() for storage in self._storages)
        for offset in range(0, longest, CHUNK_BYTES):
            for storage in self._storages:
                size = min(CHUNK_BYTES, storage.nbytes() - offset)
                began = time.monotonic()
                while size > 0 and madvise(storage.data_ptr() + offset, size, MADV_POPULATE_WRITE) != 0:
                    if (code := ctypes.get_errno()) not in AGAIN:
                        log.warning("memory that the kernel promised is not there: %s", os.strerror(code))
                        return
                    if self._stopped.is_set():
                        return
                ended = time.monotonic()
                if not self._is_awaited and ended - self._step_began < BUSY_SECONDS:
                    self._stopped.wait(PAUSES * (ended - began))
                if self._stopped.is_set():
                    return
