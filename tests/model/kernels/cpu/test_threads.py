"""ThreadPool: one thread per physical core, at most the cgroup quota, one core left free from three cores on."""

import os
import time
from pathlib import Path

import pytest

from chairlift.core.errors import ConfigError
from chairlift.model.kernels.cpu import threads
from chairlift.model.kernels.cpu.threads import ThreadPool, chosen_cpus, get_thread_pool, usable_cores
from support_native import need_native


def siblings(folder: Path, *groups: str) -> Path:
    for group in groups:
        for cpu in group.split(","):
            topology = folder / f"cpu{cpu}" / "topology"
            topology.mkdir(parents=True)
            (topology / "thread_siblings_list").write_text(f"{group}\n")
    return folder


def test_one_processor_of_every_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 5})
    folder = siblings(tmp_path, "0,4", "1,5", "2,6", "3,7")
    assert usable_cores(sys_cpu=folder, quota=100) == (0, 1, 2, 3)
    assert usable_cores(sys_cpu=folder, quota=2.5) == (0, 1)
    assert usable_cores(sys_cpu=folder, quota=0.3) == (0,)
    assert usable_cores(sys_cpu=tmp_path / "none", quota=100) == (0, 1, 2, 3, 5)


@pytest.mark.parametrize(
    ("cores", "threads_option", "chosen"),
    [(1, None, (0,)), (2, None, (0, 1)), (4, None, (1, 2, 3)), (4, 4, (0, 1, 2, 3)), (4, 2, (2, 3)), (2, 3, (-1,) * 3)],
)
def test_cores_are_left_to_others_where_there_are_more_than_two(
    cores: int, threads_option: int | None, chosen: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "usable_cores", lambda: tuple(range(cores)))
    assert chosen_cpus(threads_option) == chosen


def test_no_threads_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        chosen_cpus(0)


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
