"""process_report has what is the same for every service: version, resources, libraries, settings and log."""

import io
import json
import logging
import os
import time

import chairlift
from chairlift.observability.logging import LogConfig, configure
from chairlift.web.service.process_report import process_report


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
