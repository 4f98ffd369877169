"""malloc_tuning.py: a process that has grown returns free memory to the system."""

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from chairlift.web.service.malloc_tuning import (
    ARENAS,
    MAX_PAUSE_CHECKS,
    MIN_PAUSE_CHECKS,
    MallocTrimmer,
    malloc_trimmer,
    resident_bytes,
)

MIB = 2**20


class FakeProcess:
    """A fake process: a trim reduces its memory to the bytes in use."""

    def __init__(self, resident: int | None) -> None:
        self.resident_bytes = resident
        self.in_use_bytes = 0
        self.trims = 0

    def trim(self) -> None:
        self.trims += 1
        self.resident_bytes = self.in_use_bytes


def test_only_one_that_has_grown_gives_back() -> None:
    process = FakeProcess(100)
    trimmer = MallocTrimmer(lambda: process.resident_bytes, process.trim, slack=20)
    for now in (110, 120, 100, 119):
        process.resident_bytes = now
        assert not trimmer.trim_if_large()
    process.resident_bytes, process.in_use_bytes = 121, 90
    assert trimmer.trim_if_large() and process.resident_bytes == 90


def test_it_gives_back_again_and_again_what_was_in_use_before() -> None:
    """Memory that becomes free after several trims is returned, too."""
    process = FakeProcess(100)
    trimmer = MallocTrimmer(lambda: process.resident_bytes, process.trim, slack=20)
    process.resident_bytes, process.in_use_bytes = 500, 400
    assert trimmer.trim_if_large() and process.trims == 1
    for pause in (
        MIN_PAUSE_CHECKS,
        2 * MIN_PAUSE_CHECKS,
        4 * MIN_PAUSE_CHECKS,
    ):  # the first trim freed memory, the others none
        assert [trimmer.trim_if_large() for _ in range(pause)] == [False] * (pause - 1) + [True]
    process.in_use_bytes = 100
    assert any(trimmer.trim_if_large() for _ in range(MAX_PAUSE_CHECKS)) and process.resident_bytes == 100
    assert not any(trimmer.trim_if_large() for _ in range(5 * MIN_PAUSE_CHECKS)), "no memory is free any more"
    process.resident_bytes = 500
    assert trimmer.trim_if_large(), "the pause is short again"


def test_where_there_is_nothing_to_give_it_seldom_tries() -> None:
    process = FakeProcess(100)
    trimmer = MallocTrimmer(lambda: process.resident_bytes, process.trim, slack=20)
    process.resident_bytes = process.in_use_bytes = 500
    for _ in range(10 * MAX_PAUSE_CHECKS):
        trimmer.trim_if_large()
    assert process.trims < 20


def test_the_level_sinks_with_the_process() -> None:
    process = FakeProcess(100)
    trimmer = MallocTrimmer(lambda: process.resident_bytes, process.trim, slack=10)
    process.resident_bytes = 50
    assert not trimmer.trim_if_large()
    process.resident_bytes = 61
    assert trimmer.trim_if_large()


def test_where_the_system_does_not_tell_nothing_happens() -> None:
    process = FakeProcess(None)
    assert not MallocTrimmer(lambda: process.resident_bytes, process.trim).trim_if_large() and process.trims == 0


@pytest.mark.skipif(sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not of glibc")
def test_what_a_thread_has_freed_goes_back() -> None:
    """A process of its own: where earlier tests have freed memory, the blocks may fit into that, and nothing grows."""
    code = "import test_malloc_tuning; test_malloc_tuning.free_in_a_thread_and_trim()"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    subprocess.run([sys.executable, "-c", code], env=environ, check=True, timeout=120)


def free_in_a_thread_and_trim() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = (ctypes.c_void_p,)
    count, size = 3000, 100_000  # below the size for which malloc uses mmap
    allocated, finished = threading.Event(), threading.Event()

    def allocate_and_free() -> None:
        blocks = [libc.malloc(size) for _ in range(count)]
        for block in blocks:
            ctypes.memset(block, 1, size)
        for block in blocks[:-1]:
            libc.free(block)
        allocated.set()
        finished.wait(60)  # the last block is above the others, so malloc cannot shrink the heap
        libc.free(blocks[-1])

    trimmer = malloc_trimmer()
    before = resident_bytes()
    worker = threading.Thread(target=allocate_and_free)
    worker.start()
    try:
        assert allocated.wait(60)
        grown = resident_bytes()
        assert before is not None and grown is not None and grown - before > 150 * MIB, "the test needs this growth"
        assert trimmer.trim_if_large()
        after = resident_bytes()
        assert after is not None and after - before < 50 * MIB
    finally:
        finished.set()
        worker.join(60)


ARENAS_IN_USE = """
import ctypes, threading
from chairlift.web.service.malloc_tuning import limit_malloc_arenas
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.fopen.restype = ctypes.c_void_p, ctypes.c_void_p
limit_malloc_arenas() if {is_limited} else None
barrier = threading.Barrier(12)
def use_arena():
    barrier.wait(30)
    libc.malloc(10_000)
    barrier.wait(30)
threads = [threading.Thread(target=use_arena) for _ in range(12)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
libc.malloc_info(0, ctypes.c_void_p(libc.fopen(b"/dev/stdout", b"w")))
libc.fflush(None)
"""


@pytest.mark.skipif(sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="not of glibc")
@pytest.mark.parametrize(
    ("is_limited", "fits"), [(True, lambda count: count == ARENAS), (False, lambda count: count > 4)]
)
def test_threads_share_few_arenas(is_limited: bool, fits: Callable[[int], bool]) -> None:
    code = ARENAS_IN_USE.format(is_limited=is_limited)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert fits(finished.stdout.count("<heap nr="))
