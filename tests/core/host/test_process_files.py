"""process_facts has the numbers of a running process, and None for one that has ended."""

import os
from pathlib import Path

from chairlift.core.host.process_files import process_facts


def test_the_facts_are_read_from_the_files_of_the_process(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    (folder / "fd").mkdir(parents=True)
    for name in ("0", "1", "2"):
        (folder / "fd" / name).touch()
    (folder / "status").write_text("Name:\tx\nVmRSS:\t    2048 kB\nThreads:\t3\n")
    (folder / "limits").write_text("Limit   Soft Limit  Hard Limit  Units\nMax open files   1024   4096   files\n")
    assert process_facts(7, tmp_path) == {
        "pid": 7, "memory_bytes": 2048 * 1024, "threads": 3, "open_files": 3, "max_open_files": 1024,
    }  # fmt: skip


def test_unlimited_files_and_an_ended_process_have_no_numbers(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "limits").write_text("Max open files   unlimited   unlimited   files\n")
    assert process_facts(7, tmp_path)["max_open_files"] is None
    assert set(process_facts(8, tmp_path).values()) == {8, None}


def test_this_process_has_open_files_below_its_limit() -> None:
    facts = process_facts(os.getpid())
    assert 0 < facts["open_files"] <= facts["max_open_files"] and facts["memory_bytes"] > 2**20
