"""Populating: pages of a large cache are made real behind the start, in the order in which blocks are handed out.

Ten gigabytes take two seconds to clear, and twenty on a virtual machine whose host has to find them first. A server can
answer meanwhile: a page that is written to before its turn becomes real at that moment. What the kernel has promised
and cannot give shows within seconds of the start, and not in the middle of the night.
"""

import ctypes
import errno
import functools
import logging
import mmap
import os
import threading
from collections.abc import Iterable

import torch
from torch import Tensor

from chairlift.core.processors import give_way
from chairlift.model.pages import HUGE_PAGE, host_zeros, huge_pages

log = logging.getLogger(__name__)

MADV_POPULATE_WRITE = 23  # Linux 5.14; Python has no name for it
CHUNK_BYTES = 8 * HUGE_PAGE
"""That is populated in one call, which nobody can interrupt."""

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
        self._thread = threading.Thread(target=self._run, name="chairlift-populate", daemon=True)

    def start(self) -> None:
        """Begin, where there is anything to do."""
        if self._storages and can_populate():
            self._thread.start()

    def wait(self) -> None:
        """Return when every page is there."""
        if self._thread.ident is not None:
            self._thread.join()

    def stop(self) -> None:
        """Stop where it is; afterwards the memory may go."""
        self._stopped.set()
        self.wait()
        self._storages.clear()

    def _run(self) -> None:
        give_way([threading.get_native_id()], NICENESS)
        madvise = ctypes.CDLL(None, use_errno=True).madvise  # which, unlike mmap's own, lets other threads run
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        longest = max(storage.nbytes() for storage in self._storages)
        for offset in range(0, longest, CHUNK_BYTES):
            for storage in self._storages:
                size = min(CHUNK_BYTES, storage.nbytes() - offset)
                while size > 0 and madvise(storage.data_ptr() + offset, size, MADV_POPULATE_WRITE) != 0:
                    if (code := ctypes.get_errno()) not in AGAIN:
                        log.warning("memory that the kernel promised is not there: %s", os.strerror(code))
                        return
                    if self._stopped.is_set():
                        return
                if self._stopped.is_set():
                    return
