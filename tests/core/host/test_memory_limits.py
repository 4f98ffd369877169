"""Memory limits of host and cgroups; tests/model/runner/test_kv_cache_sizing.py has the cases of nested groups."""

from pathlib import Path

from chairlift.core.host.memory_limits import MemoryLimit, cgroup_memory_limits, memory_limits


def test_the_host_and_its_cgroups_have_a_limit_and_a_use(tmp_path: Path) -> None:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 8 kB\nMemAvailable: 6 kB\n")
    (proc / "self/cgroup").write_text("0::/a\n")
    (cgroup / "a").mkdir(parents=True)
    for name, text in {"max": "4096", "current": "3000", "stat": "anon 1\ninactive_file 500"}.items():
        (cgroup / f"a/memory.{name}").write_text(text)
    in_group = MemoryLimit(4096, 2500, f"cgroup {cgroup / 'a/memory.max'}")
    assert memory_limits(proc=proc, cgroup=cgroup) == [MemoryLimit(8192, 2048, "MemTotal"), in_group]
    (cgroup / "a/memory.current").write_text("400")
    assert [each.used_bytes for each in cgroup_memory_limits(proc=proc, cgroup=cgroup)] == [0], "never negative"


def test_a_system_without_these_files_has_no_limits(tmp_path: Path) -> None:
    assert memory_limits(proc=tmp_path, cgroup=tmp_path) == []
    (tmp_path / "meminfo").write_text("MemTotal: 0 kB\nMemAvailable: 6 kB\n")
    assert memory_limits(proc=tmp_path, cgroup=tmp_path) == []


def test_this_machine_has_one() -> None:
    for each in memory_limits()[:1]:
        assert 0 < each.used_bytes < each.num_bytes
