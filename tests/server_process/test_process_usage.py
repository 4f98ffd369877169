"""ProcessTree adds up the usage of a process and all its descendants."""

from pathlib import Path

from server_process.process_usage import CLOCK_TICKS_PER_SECOND, PAGE_BYTES, ProcessTree


def add_process(proc: Path, pid: int, children: dict[int, str], ticks: tuple[int, int], pages: int) -> None:
    for thread, listed in children.items():
        (proc / str(pid) / "task" / str(thread)).mkdir(parents=True)
        (proc / str(pid) / "task" / str(thread) / "children").write_text(listed)
    stat = f"{pid} (a ) (name) S 1 1 1 0 -1 0 0 0 0 0 {ticks[0]} {ticks[1]} 9 9 20 0 1 0 100 5000 {pages} 0"
    (proc / str(pid) / "stat").write_text(stat)


def test_usage_includes_the_children_of_each_thread_and_their_children(tmp_path: Path) -> None:
    add_process(tmp_path, 1, {1: "2 ", 7: "3 "}, (10, 20), 100)
    add_process(tmp_path, 2, {2: "4 5 "}, (1, 2), 10)
    add_process(tmp_path, 3, {3: ""}, (300, 0), 1)
    add_process(tmp_path, 4, {4: ""}, (0, 4000), 0)
    add_process(tmp_path, 6, {6: ""}, (50_000, 50_000), 50_000)  # another program's
    tree = ProcessTree(1, tmp_path)
    assert sorted(tree.pids()) == [1, 2, 3, 4, 5]
    assert tree.cpu_seconds() == 4333 / CLOCK_TICKS_PER_SECOND
    assert tree.rss_bytes() == 111 * PAGE_BYTES


def test_a_process_that_has_ended_has_no_usage(tmp_path: Path) -> None:
    assert ProcessTree(1, tmp_path).cpu_seconds() == ProcessTree(1, tmp_path).rss_bytes() == 0
