"""An autoscaler as a process: it scales the pool of a webhook by the load of its replicas, which outlive it."""

import sys
from typing import Any

import httpx
import pytest

from chairlift.cli.diagnosis.diagnosis import diagnose
from chairlift.cli.diagnosis.finding import ERROR
from chairlift.cli.diagnosis.server_reader import Keys, ServerReader
from support_http_pool import pool
from support_process import wait_until
from support_server import ADMIN_KEY, running_server

ADMIN = {"authorization": f"Bearer {ADMIN_KEY}"}


@pytest.mark.full
def test_an_autoscaler_grows_with_the_load_and_leaves_the_replicas_running() -> None:
    with pool() as state:
        command = [sys.executable, "-m", "chairlift", "autoscaler", "--port", "0", "--cluster", f"{state.url}/scale",
                   "--max-replicas", "3", "--scale-interval", "0.1"]  # fmt: skip
        with running_server(command, {"CHAIRLIFT_ADMIN_KEY": ADMIN_KEY}) as server:
            server.wait_until_ready()
            wait_until(lambda: len(state.replicas) == 1)
            state.running = 4  # each runs all that it can
            wait_until(lambda: len(state.replicas) == 3)
            wait_until(lambda: status_of(server.url)["autoscaler"]["current"] == 3)
            assert [each["state"] for each in status_of(server.url)["replicas"]] == ["ready"] * 3
            wait_until(lambda: "chairlift_autoscaler_current_replicas 3.0" in httpx.get(server.url + "/metrics").text)
            assert httpx.get(server.url + "/readyz").status_code == 200
            assert httpx.get(server.url + "/admin/autoscaler").status_code in (401, 403)
            assert httpx.get(server.url + "/v1/models").status_code == 404
            check_debug_report(server.url)
            assert server.stop() == 0
        assert max(state.targets) == 3 and len(state.replicas) == 3


def check_debug_report(url: str) -> None:
    """The report explains the process, only to administrators, and the commands that read a live server take it."""
    assert httpx.get(f"{url}/admin/debug").status_code in (401, 403)
    response = httpx.get(f"{url}/admin/debug", headers=ADMIN)
    report = response.json()
    assert (report["service"], report["state"], report["reason"]) == ("autoscaler", "ready", "")
    assert (report["settings"]["max_replicas"], report["settings"]["CHAIRLIFT_ADMIN_KEY"]) == (3, "set")
    assert len(report["replicas"]) == 3 and report["autoscaler"]["newest_decision"]["target"] == 3
    assert report["processes"]["api"]["open_files"] > 0 and ADMIN_KEY not in response.text
    diagnosis = diagnose(ServerReader(url, Keys(admin=ADMIN_KEY)), Keys(), 0.0)
    assert diagnosis.as_json()["service"] == "autoscaler"
    assert [each.check for each in diagnosis.findings if each.level == ERROR] == []


def test_a_dry_run_changes_nothing() -> None:
    with pool() as state:
        command = [sys.executable, "-m", "chairlift", "autoscaler", "--port", "0", "--cluster", f"{state.url}/scale",
                   "--scale-interval", "0.1", "--dry-run"]  # fmt: skip
        with running_server(command, {"CHAIRLIFT_ADMIN_KEY": ADMIN_KEY}) as server:
            server.wait_until_ready()
            wait_until(lambda: newest(server.url) is not None)
            decision = newest(server.url)
            assert (decision["target"], decision["is_dry_run"], state.targets) == (1, True, [])
            assert server.stop() == 0


WITH_A_BUG = """
import sys
from chairlift.cli.main import main
from chairlift.fleet.autoscaler_process import AutoscalerService

async def fail(service):
    raise LookupError("a bug")

AutoscalerService._update_gauges = fail
sys.exit(main(["autoscaler", "--port", "0", "--cluster", sys.argv[1]]))
"""


def test_a_background_task_that_fails_ends_the_process_with_the_reason() -> None:
    with pool() as state, running_server([sys.executable, "-c", WITH_A_BUG, f"{state.url}/scale"], {}) as server:
        assert server.wait_for_exit() == 1
        assert "internal error: fail has failed in the background, so the process ends" in server.log
        assert "LookupError: a bug" in server.log and "stopped" in server.lines


def newest(url: str) -> Any:
    return status_of(url)["autoscaler"]["newest_decision"]


def status_of(url: str) -> Any:
    return httpx.get(f"{url}/admin/autoscaler", headers=ADMIN).json()
