"""host_zeros, keep_freed_memory: allocate populated host tensors on huge pages; keep freed memory in the process."""

import contextlib
import ctypes
import math
import mmap

import torch
from torch import Tensor

HUGE_PAGE = 2 * 2**20

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt, as malloc.h numbers them
_KEEPING = ((_TRIM_THRESHOLD, 2**31 - 1), (_MMAP_THRESHOLD, 32 * 2**20))  # the largest accepted values, in bytes


def host_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return zeros in host memory with every page populated, so that no page is missing later.

    2 MiB pages make that about five times as fast as small ones (4 GiB: 0.3 s against 1.7 s on the development
    machine). The kernel uses them for private mappings only; Python maps shared memory by default.
    Raises MemoryError or OSError when memory is short.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=dtype)
    return huge_pages(num_bytes).view(dtype).view(shape).zero_()


def huge_pages(num_bytes: int) -> Tensor:
    """Return zeros, uint8 [num_bytes], on huge pages where the kernel has them; the first write populates a page.

    Raises MemoryError or OSError when memory is short.
    """
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)


def keep_freed_memory() -> bool:
    """Make the C library keep the memory of freed tensors for later ones; returns whether it will.

    A step allocates and frees tensors of many megabytes. glibc returns such memory to the kernel, which clears every
    page at the next allocation: 100,000 page faults in a prefill of 2,048 tokens of a 135M model. A step's peak is
    subtracted from the cache's share anyway (kv_cache_sizing.py), so keeping it costs nothing. The setting is for the
    whole process.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another C library
        return False
    return all(mallopt(*setting) == 1 for setting in _KEEPING)
