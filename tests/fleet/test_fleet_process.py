"""A fleet as a process: it starts what is needed, loses nothing with a replica or itself, and stops all at the end."""

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from jsonschema import Draft202012Validator

from chairlift.cli.diagnosis.diagnosis import diagnose
from chairlift.cli.diagnosis.server_reader import Keys, ServerReader
from chairlift.core.cluster_errors import ClusterFailed
from chairlift.fleet.fleet_process import print_replica_log
from chairlift.protocol.response_schemas import ROUTER_DEBUG
from support_process import wait_until
from support_server import ADMIN_KEY, CHAT, HELLO, TESTS, Server, events, running_server

ADMIN = {"authorization": f"Bearer {ADMIN_KEY}"}
LONG = {**HELLO, "max_tokens": 400, "ignore_eos": True, "stream": True, "temperature": 0}


@contextmanager
def fleet(folder: Path, *words: str, is_ready: bool = True, **environ: str) -> Iterator[Server]:
    """Run a fleet with fake engines; at the end it and its replicas are killed, where the test has not stopped it."""
    command = [sys.executable, str(TESTS / "fleet_main.py"), "--port", "0", "--state-dir", str(folder), *words]
    with running_server(command, {"CHAIRLIFT_ADMIN_KEY": ADMIN_KEY, **environ}) as server:
        try:
            yield server.wait_until_ready() if is_ready else server
        finally:
            server.process.kill()
            for pid in pids(folder):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def pids(folder: Path) -> list[int]:
    """Return the processes of the replicas that run."""
    found = [int(file.read_text()) for file in folder.glob("replicas/*/pid")]
    return [pid for pid in found if is_running(pid)]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def status(server: Server) -> Any:
    response = httpx.get(f"{server.url}/admin/fleet", headers=ADMIN)
    assert response.status_code == 200, response.text
    return response.json()


def states(server: Server) -> list[str]:
    return [each["state"] for each in status(server)["replicas"]]


class Streams:
    """Streams that run in threads."""

    def __init__(self, url: str, count: int) -> None:
        self.texts: list[str] = []
        self._threads = [threading.Thread(target=self._read, args=(url,), daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _read(self, url: str) -> None:
        with httpx.stream("POST", url + CHAT, json=LONG, timeout=60) as response:
            self.texts.append(response.read().decode() if response.status_code == 200 else str(response.status_code))

    def wait(self) -> Sequence[str]:
        """Return the outputs, each of which must be complete."""
        for thread in self._threads:
            thread.join(60)
        assert len(self.texts) == len(self._threads)
        contents = []
        for text in self.texts:
            *chunks, last = events(text)
            assert last == "[DONE]", text[-300:]
            contents.append(
                "".join(each["choices"][0]["delta"].get("content", "") for each in chunks if each["choices"])
            )
        return contents


def test_a_fleet_wakes_up_loses_replicas_is_updated_and_stops(tmp_path: Path) -> None:
    words = ["--min-replicas", "0", "--max-replicas", "2", "--scale-interval", "0.2", "--scale-to-zero-after", "0.5",
             "--scale-down-delay", "0", "--reversal-delay", "0", "--stable-window", "1",
             "--panic-window", "0.5"]  # fmt: skip
    with fleet(tmp_path, *words) as server:
        assert pids(tmp_path) == [] and httpx.get(server.url + "/readyz").status_code == 200
        response = httpx.post(server.url + CHAT, json=HELLO, timeout=60)  # held until the first replica serves
        assert response.status_code == 200, response.text
        (pid,) = pids(tmp_path)
        streams = Streams(server.url, 4)
        wait_until(lambda: states(server) == ["ready"] and load_of(server) == 4)
        os.kill(pid, signal.SIGKILL)
        first, *others = streams.wait()
        assert others == [first] * 3 and len(first) > 300, "the streams went on at another replica"
        assert "was killed, probably for lack of memory" in server.log
        wait_until(lambda: pids(tmp_path) == [], 20)  # no request for half a second
        assert httpx.get(server.url + "/v1/models").json()["data"][0]["id"] == "fake", "remembered"
        assert server.stop() == 0


class FakePrometheus(BaseHTTPRequestHandler):
    """Answers each query with one number."""

    number = 0.0

    def do_GET(self) -> None:
        result = [{"metric": {}, "value": [1.0, str(self.number)]}]
        body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: Any) -> None:
        """Log nothing."""


@pytest.mark.full
def test_a_fleet_follows_a_query_of_prometheus(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), FakePrometheus) as prometheus:
        threading.Thread(target=prometheus.serve_forever, daemon=True).start()
        FakePrometheus.number = 16.0
        url = f"http://127.0.0.1:{prometheus.server_port}"
        words = ["--prometheus-url", url, "--query", "queue=sum(length)", "--query-target", "queue=8",
                 "--scale-interval", "0.2", "--max-replicas", "3"]  # fmt: skip
        with fleet(tmp_path, *words) as server:
            wait_until(lambda: states(server) == ["ready"] * 2)
            paths = httpx.get(server.url + "/openapi.json").json()["paths"]
            documented = paths["/admin/fleet"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
            jsonschema.validate(status(server), documented, Draft202012Validator)
            rule = status(server)["autoscaler"]["newest_decision"]["rules"]["external:queue"]
            assert rule["desired"] == 2 and 16 in rule["numbers"].values()
            assert server.stop() == 0
        prometheus.shutdown()


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="the CPU use is measured on Linux alone")
def test_a_fleet_in_threshold_mode_grows_by_the_cpu_use_of_its_replica_and_shrinks_again(tmp_path: Path) -> None:
    thresholds = {
        "cpu_high": 0.05, "cpu_low": 0.04, "queue_high": None, "queue_low": None, "grow_seconds": 1,
        "shrink_seconds": 1, "cooldown_seconds": 0,
    }  # fmt: skip
    words = ["--max-replicas", "2", "--scale-interval", "0.2", "--scaling", "threshold"]
    with fleet(tmp_path, *words, THRESHOLDS=json.dumps(thresholds)) as server:
        wait_until(lambda: cpu_rule(server) is not None and len(states(server)) == 1)
        while len(states(server)) < 2:
            Streams(server.url, 8).wait()
        decisions = status(server)["autoscaler"]["decisions_with_change"]
        growths = [each for each in decisions if each["reason"] == "growth"]  # again while the new one is not seen yet
        assert growths and all(each["target"] == 2 for each in growths), decisions
        assert all(each["rules"]["cpu"]["numbers"]["value"] > 0.05 for each in growths)
        wait_until(lambda: states(server) == ["ready"], 60)
        assert (usage := cpu_rule(server)) is not None and usage < 0.04


def cpu_rule(server: Server) -> float | None:
    """Return the CPU use of which the fleet knows."""
    decision = status(server)["autoscaler"]["newest_decision"] or {"rules": {}}
    value = decision["rules"].get("cpu", {}).get("numbers", {}).get("value")
    return None if value is None else float(value)


def metrics_of(server: Server) -> str:
    return httpx.get(server.url + "/metrics").text


def load_of(server: Server) -> int:
    reply = httpx.get(f"{server.url}/admin/replicas", headers=ADMIN).json()
    return sum(each["open_requests"] for each in reply["replicas"])


@pytest.mark.full
def test_an_update_fails_without_harm_or_loses_no_stream_and_a_killed_fleet_is_taken_over(tmp_path: Path) -> None:
    with fleet(tmp_path, "--max-replicas", "2", "--scale-interval", "0.2") as server:
        (before,) = pids(tmp_path)
        httpx.post(f"{server.url}/admin/fleet/update", headers=ADMIN, json={"model": "broken"})
        wait_until(lambda: not status(server)["is_updating"], 30)
        assert "no such model" in status(server)["update_failure"] and status(server)["model"] == ""
        assert pids(tmp_path) == [before], "the old replica serves on"
        streams = Streams(server.url, 4)
        wait_until(lambda: load_of(server) == 4)
        body = {"arguments": ["--seed", "0"]}
        update = httpx.post(f"{server.url}/admin/fleet/update", headers=ADMIN, json=body)
        assert update.status_code == 202 and update.json()["is_updating"], update.text
        first, *others = streams.wait()
        assert others == [first] * 3
        wait_until(lambda: not status(server)["is_updating"] and pids(tmp_path) and before not in pids(tmp_path), 30)
        (after,) = pids(tmp_path)
        server.process.kill()
        server.process.wait(10)
        assert pids(tmp_path) == [after], "replicas outlive their fleet"
        again = ["--max-replicas", "2", "--replica-option", "seed=0"]
        with fleet(tmp_path, *again) as second:
            assert pids(tmp_path) == [after] and set(states(second)) == {"ready", "failed"}
            assert httpx.post(second.url + CHAT, json=HELLO).status_code == 200
            wait_until(lambda: "chairlift_autoscaler_target_replicas 1.0" in metrics_of(second))
            assert second.stop() == 0
        assert pids(tmp_path) == []


def test_the_output_of_the_replicas_is_read_on_after_a_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("chairlift.fleet.fleet_process.LOG_RETRY_SECONDS", 0.0)
    outcomes: list[Any] = ["a", ClusterFailed("the disk is full"), ClusterFailed("the disk is full"), "b", None]
    lines: list[str] = []

    async def log_lines() -> AsyncIterator[tuple[str, str]]:
        while (outcome := outcomes.pop(0)) is not None:
            if isinstance(outcome, Exception):
                raise outcome
            yield "r1", outcome

    asyncio.run(print_replica_log(log_lines, lines.append))
    assert lines == ["[r1] a", "[r1] b"] and caplog.text.count("the disk is full") == 1


@pytest.mark.share(2)
@pytest.mark.parametrize(("body", "message"), [
    ({"arguments": ["--dtyp", "x"]}, "serve` has no option"), ({"arguments": "x"}, "must be a list of texts"),
    ({"model": 5}, "must be a text"), ({"port": 5}, "is no field of an update"), ([], "must be a JSON object"),
])  # fmt: skip
def test_an_invalid_update_changes_nothing(idle_fleet: Server, body: Any, message: str) -> None:
    before = status(idle_fleet)["version"]
    response = httpx.post(
        f"{idle_fleet.url}/admin/fleet/update", headers={**ADMIN, "content-type": "application/json"},
        content=json.dumps(body),
    )  # fmt: skip
    assert response.status_code == 400 and message in response.text, response.text
    assert status(idle_fleet)["version"] == before


def test_only_administrators_see_the_fleet(idle_fleet: Server) -> None:
    for method, path in (("GET", "/admin/fleet"), ("POST", "/admin/fleet/update")):
        response = httpx.request(method, idle_fleet.url + path, json={})
        assert response.status_code in (401, 403), response.text


def test_the_debug_report_has_the_autoscaler_and_a_pool_of_zero_is_no_fault(idle_fleet: Server) -> None:
    report = httpx.get(f"{idle_fleet.url}/admin/debug", headers=ADMIN).json()
    Draft202012Validator(ROUTER_DEBUG).validate(report)
    assert (report["autoscaler"]["target"], report["pool"]["replicas"]) == (0, [])
    keys = Keys(admin=ADMIN_KEY)
    assert diagnose(ServerReader(idle_fleet.url, keys), keys, 0.1).as_json()["ok"]


@pytest.fixture(scope="module")
def idle_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the state folder of the fleet without a replica."""
    return tmp_path_factory.mktemp("fleet")


@pytest.fixture(scope="module")
def idle_fleet(idle_folder: Path) -> Iterator[Server]:
    """Run a fleet without a replica."""
    with fleet(idle_folder, "--min-replicas", "0") as server:
        yield server


@pytest.mark.full
def test_two_fleets_cannot_share_a_folder(idle_fleet: Server, idle_folder: Path) -> None:
    with fleet(idle_folder, "--min-replicas", "0", is_ready=False) as second:
        assert second.wait_for_exit() == 1
        assert "another" in second.log.splitlines()[-1], second.log
