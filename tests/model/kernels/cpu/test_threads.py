"""ThreadPool, get_thread_pool: made once for a number of threads; a closed pool has ended its threads."""

import os
import time

from chairlift.model.kernels.cpu.threads import ThreadPool, get_thread_pool
from support_native import need_native
from support_os_fork import run_in_fork


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


def test_a_fork_has_threads_of_its_own() -> None:
    need_native()
    before = get_thread_pool(2)

    def num_new_threads() -> int:
        num_inherited = len(os.listdir("/proc/self/task"))
        return 0 if get_thread_pool(2) is before else len(os.listdir("/proc/self/task")) - num_inherited

    assert run_in_fork(num_new_threads) == 1 and get_thread_pool(2) is before
