"""CPU capacity: physical cores of the affinity mask, at most the quota of every cgroup above the process."""

from pathlib import Path

import pytest

from chairlift.core.host import cpu_capacity as module
from chairlift.core.host.cpu_capacity import cpu_capacity, cpu_quota, one_cpu_per_core


def test_the_first_processor_of_each_core_counts(tmp_path: Path) -> None:
    for group in ("0,4", "1,5"):
        for cpu in group.split(","):
            (tmp_path / f"cpu{cpu}/topology").mkdir(parents=True)
            (tmp_path / f"cpu{cpu}/topology/thread_siblings_list").write_text(f"{group}\n")
    assert one_cpu_per_core({5, 4, 1}, tmp_path) == (1, 4)
    assert one_cpu_per_core({5, 4, 1}, tmp_path / "none") == (1, 4, 5)


def test_quotas_of_both_versions(tmp_path: Path) -> None:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    for folder, text in {"": "max 100000", "a": "350000 100000", "a/b": "max 100000"}.items():
        (cgroup / folder).mkdir(parents=True, exist_ok=True)
        (cgroup / folder / "cpu.max").write_text(text)
    (proc / "self/cgroup").write_text("0::/a/b\n")
    assert cpu_quota(proc=proc, cgroup=cgroup) == 3.5
    (proc / "self/cgroup").write_text("4:memory:/\n3:cpu,cpuacct:/x\n")
    (cgroup / "cpu,cpuacct/x").mkdir(parents=True)
    (cgroup / "cpu,cpuacct/x/cpu.cfs_quota_us").write_text("150000\n")
    (cgroup / "cpu,cpuacct/x/cpu.cfs_period_us").write_text("100000\n")
    assert cpu_quota(proc=proc, cgroup=cgroup) == 1.5
    (cgroup / "cpu,cpuacct/x/cpu.cfs_quota_us").write_text("-1\n")
    assert cpu_quota(proc=proc, cgroup=cgroup) is None
    assert cpu_quota(proc=tmp_path / "none", cgroup=cgroup) is None


@pytest.mark.parametrize("text", ["max 100000\n", "", "1\n", "-1 100000", "a b", "5 0"])
def test_no_quota_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/\n")
    (tmp_path / "cpu.max").write_text(text)
    assert cpu_quota(proc=tmp_path, cgroup=tmp_path) is None


@pytest.mark.parametrize(("quota", "capacity"), [(None, 3.0), (1.5, 1.5), (8.0, 3.0)])
def test_the_quota_bounds_the_cores(quota: float | None, capacity: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cpu_quota", lambda **folders: quota)
    assert cpu_capacity(frozenset({1001, 1002, 1003})) == capacity  # this machine has no topology of these
    assert cpu_capacity(frozenset()) is None
