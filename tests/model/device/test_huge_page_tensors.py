"""Zeros on the host: right, writable, alive as long as their tensor, an error where there is no memory; kept pages."""

import gc
import math
import platform
import resource
from pathlib import Path

import pytest
import torch

from chairlift.model.device.huge_page_tensors import host_zeros, keep_freed_memory


@pytest.mark.share(3)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5, 1, 7), (70, 16, 8, 128)])
def test_host_zeros_are_zeros_that_can_be_written_and_outlive_their_maker(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    made = [host_zeros(shape, dtype) for _ in range(3)]
    assert all(zeros.shape == shape and zeros.dtype == dtype and not zeros.any() for zeros in made)
    made[1].fill_(1)
    gc.collect()
    assert made[1].double().sum() == math.prod(shape)
    assert not made[0].any()
    assert not made[2].any()


def test_host_zeros_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("mmap.MADV_HUGEPAGE", raising=False)
    assert not host_zeros((64, 16, 8, 128), torch.float32).any()


def test_host_zeros_that_are_not_there_are_an_error_and_no_dead_process() -> None:
    with pytest.raises((MemoryError, OSError)):
        host_zeros((2**50,), torch.float64)


def test_large_zeros_lie_in_a_private_mapping_or_the_kernel_gives_no_huge_pages() -> None:
    address = host_zeros((70, 16, 8, 128), torch.float32)
    start = address.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights = line.split()[:2]
        low, high = (int(end, 16) for end in span.split("-"))
        if low <= start < high:
            assert rights == "rw-p"
            return
    raise AssertionError("the tensor is in no mapping")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_glibc_keeps_what_is_freed() -> None:
    def touch() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):
            torch.ones(4 << 20, dtype=torch.uint8)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    assert keep_freed_memory()
    touch()
    assert touch() < 10 * 1024 // 2  # each of them has 1024 pages


@pytest.mark.parametrize("library", [object(), OSError("no libc"), TypeError("no name")])
def test_another_c_library_is_left_alone(library: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: None) -> object:
        if isinstance(library, Exception):
            raise library
        return library

    monkeypatch.setattr("ctypes.CDLL", load)
    assert not keep_freed_memory()
