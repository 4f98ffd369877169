"""usable_cores: one CPU of each core within the quota, fast ones first; chosen_cpus: how many of them have a thread."""

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

    def cpus(sys_cpu: Path, quota: float) -> list[int]:
        return [core.cpu for core in usable_cores(sys_cpu=sys_cpu, quota=quota)]

    assert cpus(folder, 100) == [3, 2, 1, 0]
    assert cpus(folder, 2.5) == [3, 2]
    assert cpus(folder, 0.3) == [3]
    assert cpus(tmp_path / "none", 100) == [5, 3, 2, 1, 0]


P_CORE, E_CORE, LOW_POWER_CORE, BIG, LITTLE = 5_000_000, 3_800_000, 2_500_000, 1024, 446


@pytest.mark.parametrize(
    ("speeds", "threads_option", "chosen"),
    [
        ([1], None, (0,)), ([1, 1], None, (0, 1)), ([1] * 4, None, (1, 2, 3)), ([1] * 4, 4, (0, 1, 2, 3)),
        ([1] * 4, 2, (2, 3)), ([1, 1], 3, (-1,) * 3),
        ([P_CORE, P_CORE, E_CORE, E_CORE], None, (0, 1, 3)), ([P_CORE, P_CORE, E_CORE, E_CORE], 2, (0, 1)),
        ([P_CORE * 1.04, P_CORE, P_CORE * 1.04, P_CORE], 3, (1, 2, 3)),
        ([P_CORE, P_CORE, E_CORE, LOW_POWER_CORE], None, (0, 1, 2)), ([LITTLE] * 4 + [BIG] * 4, None, (4, 5, 6, 7)),
        ([LITTLE] * 4 + [BIG] * 4, 6, (2, 3, 4, 5, 6, 7)), ([BIG, LITTLE], None, (0,)), ([BIG, LITTLE], 2, (0, 1)),
        ([P_CORE, None, E_CORE, E_CORE], None, (1, 2, 3)),
    ],
)  # fmt: skip
def test_performance_cores_come_first_and_a_core_is_left_to_others_where_there_are_more_than_two(
    speeds: list[float | None], threads_option: int | None, chosen: tuple[int, ...], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for cpu, speed in enumerate(speeds):
        name = "cpu_capacity" if speed in (BIG, LITTLE) else "cpufreq/cpuinfo_max_freq"
        file = tmp_path / f"cpu{cpu}" / name
        file.parent.mkdir(parents=True)
        if speed is not None:
            file.write_text(f"{speed:.0f}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(len(speeds))))
    monkeypatch.setattr(kernel_cpus, "usable_cores", lambda: usable_cores(sys_cpu=tmp_path, quota=100))
    assert chosen_cpus(threads_option) == chosen


def test_no_threads_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        chosen_cpus(0)
