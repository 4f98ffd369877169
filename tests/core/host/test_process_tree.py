"""ProcessTree: fake /proc trees, and real processes that compute, allocate, share memory and end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chairlift.core.host.process_tree import TICKS_PER_SECOND, ProcessTree, TreeUsage
from support_process import wait_until

linux = pytest.mark.skipif(sys.platform != "linux", reason="the system has no /proc")
KIB = 1024


class FakeProc:
    """A folder like /proc."""

    def __init__(self, folder: Path, *, lists_children: bool = True) -> None:
        self.folder, self.lists_children = folder, lists_children

    def add(
        self, pid: int, parent: int = 1, *, ticks: tuple[int, int, int, int] = (0, 0, 0, 0),
        kib: tuple[int, int, int] | None = (0, 0, 0), children: str = "", name: str = "python",
    ) -> None:  # fmt: skip
        """Add a process with its CPU ticks, and its private, file and shared memory."""
        task = self.folder / f"{pid}/task/{pid}"
        task.mkdir(parents=True)
        if self.lists_children:
            (task / "children").write_text(children)
        fields = ["S", str(parent), *["0"] * 9, *map(str, ticks), *["0"] * 10]
        (self.folder / f"{pid}/stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
        sizes = () if kib is None else zip(("RssAnon", "RssFile", "RssShmem"), kib, strict=True)
        (self.folder / f"{pid}/status").write_text(
            "".join(f"{name}:\t{size} kB\n" for name, size in sizes) + "Name: x\n"
        )

    def tree(self, pid: int) -> ProcessTree:
        return ProcessTree(pid, proc=self.folder, affinity=lambda thread: {thread % 4})


@pytest.mark.parametrize("lists_children", [True, False])
def test_a_process_its_children_and_theirs_are_added_up(tmp_path: Path, lists_children: bool) -> None:
    proc = FakeProc(tmp_path, lists_children=lists_children)
    proc.add(10, 1, ticks=(100, 20, 3, 4), kib=(50, 10, 7), children="11 12 ", name="a (b) c")
    proc.add(11, 10, ticks=(1000, 0, 0, 0), kib=(500, 90, 7), children="14")
    proc.add(12, 10, kib=(1, 1, 9))
    proc.add(14, 11, ticks=(0, 5, 0, 0))
    proc.add(99, 1, ticks=(10**6, 0, 0, 0), kib=(10**6, 0, 0))
    (tmp_path / "meminfo").write_text("")
    usage = proc.tree(10).read()
    assert usage == TreeUsage(1132 / TICKS_PER_SECOND, (551 + 90 + 9) * KIB, frozenset({2, 3, 0}))


def test_a_process_that_ended_has_no_memory_and_its_parent_its_time(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.add(10, ticks=(100, 0, 0, 0), kib=(8, 0, 0), children="11 12")
    proc.add(11, 10, ticks=(50, 0, 0, 0), kib=None)  # its parent has not waited for it yet; 12 is gone
    usage = proc.tree(10).read()
    assert usage is not None and usage.cpu_seconds == 150 / TICKS_PER_SECOND and usage.memory_bytes == 8 * KIB


def test_without_proc_nothing_is_known(tmp_path: Path) -> None:
    assert ProcessTree(10, proc=tmp_path / "none").read() is None
    assert FakeProc(tmp_path).tree(10).read() is None


CHILD = """
import mmap, os, sys
shared = mmap.mmap(-1, 64 << 20)
shared.write(b"x" * (64 << 20))
os.fork()
for at in range(0, 64 << 20, 4096):
    shared[at]
private = b"y" * (32 << 20)
os.write(1, b"ready\\n")  # whole, whatever the other process writes
sys.stdin.read()
"""


@linux
def test_shared_memory_of_real_processes_counts_once() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        assert [parent.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        usage = ProcessTree(parent.pid).read()
        parent.stdin.close()
    assert usage is not None and 128 << 20 < usage.memory_bytes < 180 << 20, "64 shared, twice 32, and two Pythons"
    assert usage.cpus == frozenset(os.sched_getaffinity(0))


@linux
def test_the_time_of_a_child_stays_when_it_ends() -> None:
    tree = ProcessTree(os.getpid())
    before = tree.read()
    code = "import sys, time\nwhile time.process_time() < 0.15: pass\nsys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as child:
        assert before is not None and child.stdin is not None

        def used() -> float:
            usage = tree.read()
            assert usage is not None and before is not None
            return usage.cpu_seconds - before.cpu_seconds

        wait_until(lambda: used() >= 0.14)
        child.stdin.close()
    assert used() >= 0.14
