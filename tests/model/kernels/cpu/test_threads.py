"""ThreadPool, get_thread_pool: made once for a number of threads; a closed pool has ended its threads."""

import os
import threading
import time

import pytest
import torch

from chairlift.core.cpu_affinity_and_priority import lower_priority, thread_ids
from chairlift.model.backends.native_linear_and_norm import NativeRMSNorm
from chairlift.model.kernels.cpu.instruction_sets import selected_instruction_set
from chairlift.model.kernels.cpu.packing import Packer
from chairlift.model.kernels.cpu.threads import ThreadPool, get_thread_pool, max_pool_threads, renew_pool_threads
from chairlift.model.kernels.cpu.weight_kinds import KINDS
from support_native import need_native
from support_os_fork import run_in_fork
from support_process import wait_until


def test_a_pool_is_made_once_and_can_be_closed() -> None:
    need_native()
    assert get_thread_pool(2) is get_thread_pool(2)
    before = {*os.listdir("/proc/self/task")}
    pool = ThreadPool((-1, -1, -1))
    new = {*os.listdir("/proc/self/task")} - before
    assert len(new) == 2
    pool.close()
    pool.close()
    for _ in range(500):  # the kernel lists a thread a moment longer than it can be joined
        if not new & {*os.listdir("/proc/self/task")}:
            break
        time.sleep(0.01)
    assert not new & {*os.listdir("/proc/self/task")}


def helpers_of(before: frozenset[int], *others: int | None) -> frozenset[int]:
    return thread_ids() - before - {*others}


def test_a_pool_gets_new_threads_with_the_priority_of_the_caller_while_it_computes() -> None:
    need_native()
    own, before = os.getpriority(os.PRIO_PROCESS, 0), thread_ids()
    pool, rows = ThreadPool((-1, -1, -1)), torch.randn(300, 64).bfloat16()
    norm = NativeRMSNorm(torch.ones(64), 1e-6, pool, selected_instruction_set())
    expected, is_done = norm(rows), threading.Event()
    results: list[bool] = []

    def compute() -> None:
        while not is_done.is_set():
            results.append(bool((norm(rows) == expected).all()))

    def renew() -> None:
        lower_priority(3)
        pool.renew_threads()

    computing, nicer = threading.Thread(target=compute, daemon=True), threading.Thread(target=renew)
    computing.start()
    for _ in range(50):
        helpers = helpers_of(before, computing.native_id)
        assert len(helpers) == 2
        pool.renew_threads()
        wait_until(lambda ended=helpers: not thread_ids() & ended)  # type: ignore[misc]
    nicer.start()
    nicer.join()
    wait_until(lambda: len(helpers_of(before, computing.native_id)) == 2)
    helpers = helpers_of(before, computing.native_id)
    assert [os.getpriority(os.PRIO_PROCESS, each) for each in helpers] == [min(19, own + 3)] * 2
    count = len(results)
    wait_until(lambda: len(results) > count + 10)
    is_done.set()
    computing.join()
    assert all(results)
    pool.close()


def test_fewer_threads_and_more_again_compute_the_same() -> None:
    need_native()
    before, pool, rows = thread_ids(), ThreadPool((-1, -1, -1)), torch.randn(300, 64).bfloat16()
    norm = NativeRMSNorm(torch.ones(64), 1e-6, pool, selected_instruction_set())
    expected = norm(rows)
    for most, num_threads in ((1, 1), (2, 2), (None, 2), (9, 3), (0, 1), (3, 3)):
        pool.renew_threads(most)
        assert pool.num_threads == num_threads and (norm(rows) == expected).all()
        wait_until(lambda count=num_threads: len(helpers_of(before)) == count - 1)  # type: ignore[misc]
    pool.close()


def test_a_model_is_packed_by_any_number_of_threads() -> None:
    need_native()
    pool, rows = ThreadPool((-1, -1, -1)), torch.randn(200, 96).bfloat16()
    packed: list[tuple[str | bytes, ...]] = []
    for count in (3, 1, 2):
        pool.renew_threads(count)
        for kind in ("bfloat16", "int8"):
            weight, _ = Packer(pool, KINDS[kind]).pack([rows])
            packed.append((kind, *(bytes(each.numpy().tobytes()) for each in weight.memory)))
    pool.close()
    assert len(set(packed)) == 2


def test_the_pools_of_the_process_are_renewed_together() -> None:
    need_native()
    pools = [get_thread_pool(count) for count in (2, 3)]
    assert max_pool_threads() >= 3
    before = thread_ids()
    renew_pool_threads()
    wait_until(lambda: len(thread_ids()) == len(before))
    assert len(thread_ids() - before) >= sum(len(pool.cpus) - 1 for pool in pools)
    assert [get_thread_pool(count) for count in (2, 3)] == pools


def test_new_threads_that_cannot_be_started_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    need_native()
    pool = ThreadPool((-1, -1))
    monkeypatch.setattr(pool._native, "pool_renew_threads", lambda *_: 0)
    with pytest.raises(RuntimeError, match="cannot start 2 threads"):
        pool.renew_threads()
    pool.close()


def test_a_fork_has_threads_of_its_own() -> None:
    need_native()
    before = get_thread_pool(2)

    def num_new_threads() -> int:
        num_inherited = len(os.listdir("/proc/self/task"))
        return 0 if get_thread_pool(2) is before else len(os.listdir("/proc/self/task")) - num_inherited

    assert run_in_fork(num_new_threads) == 1 and get_thread_pool(2) is before
