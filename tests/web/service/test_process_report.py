"""process_report has what is the same for every service: version, resources, libraries, settings and log."""

import io
import json
import logging
import os
import time
from pathlib import Path

import chairlift
from chairlift.observability.logging import LogConfig, configure
from chairlift.web.service.process_report import process_facts, process_report


def test_the_report_of_this_process() -> None:
    report = process_report("router", 12.5, {"port": 8000}, {"engine": os.getppid()})
    json.dumps(report)
    assert (report["service"], report["version"], report["uptime_seconds"]) == ("router", chairlift.__version__, 12.5)
    assert abs(report["time"] - time.time()) < 60 and report["settings"] == {"port": 8000}
    assert report["processes"]["api"]["pid"] == os.getpid() and report["processes"]["api"]["open_files"] > 0
    assert report["processes"]["engine"]["pid"] == os.getppid()
    assert report["host"]["memory_total_bytes"] > 0 and report["host"]["cpus"] > 0
    assert {"starlette", "uvicorn", "orjson"} <= report["libraries"].keys()


def test_the_report_has_the_last_log_lines() -> None:
    configure(LogConfig(), io.StringIO())
    logging.getLogger("chairlift.x").warning("it is late")
    assert process_report("replica", 0.0, {})["log"][-1]["message"] == "it is late"


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
