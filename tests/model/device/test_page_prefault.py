"""Page prefault: pages become resident ahead of their use and keep their data; without the kernel, at once."""

import ctypes
import errno
import logging
import mmap
import threading
import time

import pytest
import torch

from chairlift.model.attention.torch_paged import TorchAttention
from chairlift.model.device import page_prefault
from chairlift.model.device.huge_page_tensors import HUGE_PAGE
from chairlift.model.device.page_prefault import PagePrefaulter, can_populate, lazy_zeros
from support_process import wait_until

LARGE = (24, 2**20)
"""Bytes of a tensor that has to be seen in the process's memory."""


def resident(*tensors: torch.Tensor) -> int:
    """Return the bytes of the tensors that are in memory."""
    libc, page, total = ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE, 0
    for tensor in tensors:
        begin = tensor.data_ptr() // page * page
        size = tensor.data_ptr() + tensor.nbytes - begin
        pages = (ctypes.c_ubyte * -(-size // page))()
        assert libc.mincore(ctypes.c_void_p(begin), ctypes.c_size_t(size), pages) == 0, ctypes.get_errno()
        total += page * sum(state & 1 for state in pages)
    return total


needs_kernel = pytest.mark.skipif(not can_populate(), reason="this kernel does not populate on request")


@needs_kernel
def test_pages_follow_the_entries_in_use_and_what_was_written_stays() -> None:
    tensors = [lazy_zeros(LARGE, torch.uint8) for _ in range(3)]
    assert resident(*tensors) == 0, "no page is resident yet"
    tensors[1][20, 5] = 7
    populator = PagePrefaulter([*tensors, tensors[0][:2]])
    populator.start()
    populator.wait()
    assert [resident(tensors[index]) // HUGE_PAGE for index in (0, 2)] == [1, 1], "one chunk ahead"
    for num_entries, num_chunks in ((1, 2), (2, 2), (3, 3), (1, 3), (24, 12)):
        populator.begin_step(num_entries)
        populator.wait()
        assert resident(tensors[0]) // HUGE_PAGE == num_chunks
    assert resident(*tensors) == 3 * tensors[0].nbytes
    assert tensors[1][20, 5] == 7
    assert sum(int(each.sum()) for each in tensors) == 7, "everything else is zero"
    populator.stop()


@needs_kernel
def test_it_stops_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_prefault, "CHUNK_BYTES", 4096)
    monkeypatch.setattr(page_prefault, "BUSY_SECONDS", 0.0)
    tensor = lazy_zeros((400, 2**20), torch.uint8)
    populator = PagePrefaulter([tensor])
    populator.begin_step(400)
    populator.end_step()
    wait_until(lambda: populator._num_chunks > 3)
    populator.stop()
    assert 3 * 4096 < resident(tensor) < tensor.nbytes
    assert populator._thread is None
    populator.wait()


@needs_kernel
def test_a_step_populates_one_chunk_and_the_thread_none_unless_it_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_prefault, "BUSY_SECONDS", 1e6)
    tensors = [lazy_zeros(LARGE, torch.uint8) for _ in range(2)]
    populator = PagePrefaulter(tensors)
    populator.begin_step(24)
    populator.start()
    for num_chunks in (2, 3, 4):
        populator._num_used = 0  # else the earlier steps would have written what they used
        populator.begin_step(24)
        populator.end_step()
        time.sleep(0.005)
        assert resident(*tensors) == num_chunks * HUGE_PAGE
    assert [resident(each) for each in tensors] == [2 * HUGE_PAGE] * 2, "in the order of their use"
    populator.wait()
    assert resident(*tensors) == 2 * tensors[0].nbytes
    populator.stop()


@needs_kernel
def test_the_thread_goes_on_when_there_are_no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_prefault, "BUSY_SECONDS", 0.01)
    tensor = lazy_zeros(LARGE, torch.uint8)
    populator = PagePrefaulter([tensor])
    populator.start()
    populator.wait()
    populator.begin_step(24)
    time.sleep(0.1)  # a step is longer than BUSY_SECONDS
    assert resident(tensor) == 2 * HUGE_PAGE
    populator.end_step()
    wait_until(lambda: resident(tensor) == tensor.nbytes)
    populator.stop()


@needs_kernel
def test_what_earlier_steps_have_written_is_not_populated_again() -> None:
    tensors = [lazy_zeros(LARGE, torch.uint8) for _ in range(3)]
    populator = PagePrefaulter(tensors)
    populator.begin_step(8)
    for tensor in tensors:
        tensor[:8] = 1
    for num_chunks in (13, 14, 15):
        populator.begin_step(9)
        assert resident(*tensors) == num_chunks * HUGE_PAGE
    populator.stop()


@needs_kernel
def test_an_error_in_the_thread_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise MemoryError

    monkeypatch.setattr(page_prefault, "_madvise", fail)
    monkeypatch.setattr(threading, "excepthook", lambda details: None)
    populator = PagePrefaulter([lazy_zeros(LARGE, torch.uint8)])
    populator.start()
    populator.wait()
    populator.begin_step(24)
    populator.stop()


@needs_kernel
def test_without_a_thread_the_steps_populate(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    tensor = lazy_zeros(LARGE, torch.uint8)
    populator = PagePrefaulter([tensor])
    populator.start()
    for _ in range(3):
        populator._num_used = 0  # else the earlier steps would have written what they used
        populator.begin_step(24)
    assert resident(tensor) == 3 * HUGE_PAGE
    populator.wait()
    populator.stop()


def test_without_the_kernels_help_they_are_real_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_prefault, "can_populate", lambda: False)
    tensor = lazy_zeros(LARGE, torch.uint8)
    assert resident(tensor) > 0.8 * tensor.nbytes and not tensor.any()
    populator = PagePrefaulter([tensor])
    populator.start()
    populator.wait()
    populator.stop()


def test_small_ones_are_left_alone() -> None:
    small = lazy_zeros((4, 8), torch.bfloat16)
    assert not small.any() and small.nbytes < HUGE_PAGE
    populator = PagePrefaulter([small])
    populator.start()
    populator.stop()


@needs_kernel
def test_missing_memory_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    class Madvise:
        """A C function that is interrupted twice, and then fails."""

        num_calls = 0

        def __call__(self, address: int, size: int, advice: int) -> int:
            self.num_calls += 1
            ctypes.set_errno(errno.EAGAIN if self.num_calls < 3 else errno.ENOMEM)
            return -1

    tensor = lazy_zeros(LARGE, torch.uint8)
    populator, madvise = PagePrefaulter([tensor]), Madvise()
    monkeypatch.setattr(page_prefault, "_madvise", lambda: madvise)
    with caplog.at_level(logging.WARNING, logger="chairlift"):
        populator.start()
        populator.wait()
        populator.begin_step(24)
    assert madvise.num_calls == 3, "an interrupted call is repeated, a failed one is not"
    assert "promised is missing" in caplog.text


@needs_kernel
def test_views_into_one_tensor_are_one_piece_of_work() -> None:
    (kv,) = TorchAttention().allocate_kv_cache(1, 64, 16, 8, 128, torch.float32, torch.device("cpu"))
    assert kv.key.untyped_storage().data_ptr() == kv.value.untyped_storage().data_ptr()
    assert len(PagePrefaulter([kv.key, kv.value])._storages) == 1


@needs_kernel
def test_released_entries_leave_the_memory_are_zeros_and_can_be_used_again() -> None:
    tensors = [lazy_zeros(LARGE, torch.uint8) for _ in range(3)]
    populator = PagePrefaulter([*tensors, tensors[0][:2]])
    populator.start()
    populator.begin_step(24)
    populator.wait()
    for tensor in tensors:
        tensor.fill_(3)
    before = resident(*tensors)
    released = populator.release(8)
    assert released == 3 * 16 * 2**20 and before - resident(*tensors) >= 3 * 14 * 2**20
    assert all(int(tensor[:8].min()) == 3 and int(tensor[-3:-2].max()) == 0 for tensor in tensors)
    tensors[0][20] = 7
    assert int(tensors[0][20].min()) == 7
    populator.begin_step(24)
    populator.wait()
    assert resident(*tensors) == before
    populator.stop()
    assert PagePrefaulter([torch.zeros(4, 4)]).release(0) == 0, "a small tensor has no pages of its own"
