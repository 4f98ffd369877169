"""ThreadPool: one thread per physical core, at most the cgroup quota, one core left free from three cores on."""

import os
import time
from pathlib import Path

from chairlift.model.kernels.cpu.threads import ThreadPool, get_thread_pool
from support_native import need_native


def siblings(folder: Path, *groups: str) -> Path:
    for group in groups:
        for cpu in group.split(","):
            topology = folder / f"cpu{cpu}" / "topology"
            topology.mkdir(parents=True)
            (topology / "thread_siblings_list").write_text(f"{group}\n")
    return folder


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
