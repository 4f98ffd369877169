"""Large tensors of the host's memory: pages that are really there, huge ones where the kernel gives them."""

import contextlib
import math
import mmap

import torch
from torch import Tensor

HUGE_PAGE = 2 * 2**20


def host_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return zeros on the host, every page of which has been touched: what was promised is not missing later.

    2 MiB pages make that about five times as fast as small ones (4 GiB: 0.3 s against 1.7 s on the development
    machine). The kernel gives them to private mappings only, and Python's own default is shared.
    Raises MemoryError or OSError when there is not so much.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=dtype)
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype).view(shape).zero_()
