"""usable_cores: one CPU of each core within the quota; chosen_cpus: one core is left free from three cores on."""

import os
from pathlib import Path

import pytest

from chairlift.core.errors import ConfigError
from chairlift.model.kernels.cpu import kernel_cpus
from chairlift.model.kernels.cpu.kernel_cpus import chosen_cpus, usable_cores


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
    monkeypatch.setattr(kernel_cpus, "usable_cores", lambda: tuple(range(cores)))
    assert chosen_cpus(threads_option) == chosen


def test_no_threads_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        chosen_cpus(0)
