"""A real Prometheus and a real Alertmanager with the files of deploy/prometheus, and a webhook that gets the alerts.

Times pass SPEED times as fast: tools/fast_alert_rules divides those of the rules, and nothing else of them is changed.
"""

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import httpx
import yaml

from fast_alert_rules.__main__ import write_rules
from support_monitoring import PROMETHEUS_FOLDER
from support_services_processes import free_port, require_service, wait_for

SPEED = 60.0
INTERVAL = "250ms"
"""Time between two scrapes and between two evaluations: 15 s, divided by SPEED."""

WAIT_SECONDS = 120.0
"""Most seconds that a test waits for an alert or for a series."""

RUNBOOKS = "https://runbooks.test"

Jobs = Mapping[str, Sequence[str]]
"""Targets by job; each is a URL."""


class AlertReceiver:
    """A webhook of Alertmanager that keeps what it gets.

    Attributes:
        alerts: every alert in each message, in order.
        url: URL of the webhook.
    """

    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.alerts += body["alerts"]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def has(self, name: str, status: str) -> bool:
        """Return whether an alert has been firing, or is resolved for each of its labels."""
        mine = [each for each in list(self.alerts) if each["labels"]["alertname"] == name]
        if status == "firing":
            return any(each["status"] == status for each in mine)
        newest = {each["fingerprint"]: each["status"] for each in mine}
        return bool(newest) and set(newest.values()) == {status}

    def find(self, name: str) -> dict[str, Any]:
        """Return the first firing alert of a name."""
        return next(each for each in self.alerts if each["labels"]["alertname"] == name)

    def wait_for(self, status: str, *names: str) -> None:
        """Wait until alerts of all names have come with a status."""
        wait_until(lambda: all(self.has(name, status) for name in names), lambda: self._missing(status, names))

    def _missing(self, status: str, names: Sequence[str]) -> str:
        missing = [name for name in names if not self.has(name, status)]
        return f"not {status}: {missing}; came: {[(a['labels']['alertname'], a['status']) for a in self.alerts]}"


def wait_until(is_true: Callable[[], bool], reason: Callable[[], str]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not is_true():
        assert time.monotonic() < end, reason()
        time.sleep(0.05)


class PrometheusServer:
    """A Prometheus that can be asked.

    Attributes:
        url: its URL.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Return the result of an instant query. Raises AssertionError for a query that is not valid."""
        response = httpx.post(f"{self.url}/api/v1/query", data={"query": expr}, timeout=10).json()
        assert response["status"] == "success", (expr, response)
        result: list[dict[str, Any]] = response["data"]["result"]
        return result

    def values(self, expr: str) -> list[float]:
        """Return the values of a query."""
        return [float(each["value"][1]) for each in self.query(expr)]

    def wait_for(self, expr: str) -> None:
        """Wait until a query has a result."""
        wait_until(lambda: bool(self.query(expr)), lambda: f"no result: {expr}")


def write_config(folder: Path, jobs: Jobs, alertmanager: str, keys: Mapping[str, Path]) -> Path:
    """Write deploy/prometheus/prometheus.yml with these targets, and the rules beside it; `keys` has files by job."""
    config = yaml.safe_load((PROMETHEUS_FOLDER / "prometheus.yml").read_text())
    config["global"] |= {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL}
    config["global"]["external_labels"]["runbooks"] = RUNBOOKS
    config["alerting"]["alertmanagers"] = [{"static_configs": [{"targets": [alertmanager]}]}] if alertmanager else []
    config["scrape_configs"] = []
    for job, urls in jobs.items():
        for scheme in ("http", "https"):
            targets = [url.partition("://")[2] for url in urls if url.startswith(f"{scheme}://")]
            if targets:
                config["scrape_configs"].append({
                    "job_name": f"{job}-{scheme}", "scheme": scheme, "static_configs": [{"targets": targets}],
                    "tls_config": {"insecure_skip_verify": True},
                    "relabel_configs": [{"target_label": "job", "replacement": job}],
                    **({"authorization": {"credentials_file": str(keys[job])}} if job in keys else {}),
                })  # fmt: skip
    write_rules(PROMETHEUS_FOLDER / "rules", folder / "rules", SPEED)
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    return file


@contextmanager
def prometheus(
    folder: Path, jobs: Jobs, alertmanager: str = "", keys: Mapping[str, Path] | None = None
) -> Iterator[PrometheusServer]:
    """Run Prometheus over these targets."""
    program, port = require_service("prometheus"), free_port()
    command = [
        program, f"--config.file={write_config(folder, jobs, alertmanager, keys or {})}",
        f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
        f"--rules.alert.resend-delay={INTERVAL}",
    ]  # fmt: skip
    with running(command, folder / "prometheus.log", f"http://127.0.0.1:{port}/-/ready"):
        yield PrometheusServer(f"http://127.0.0.1:{port}")


@contextmanager
def alertmanager(folder: Path, receiver: AlertReceiver) -> Iterator[str]:
    """Run Alertmanager with the webhook in place of the receiver, and without waits; yields its address."""
    program, port = require_service("prometheus-alertmanager"), free_port()
    config = yaml.safe_load((PROMETHEUS_FOLDER / "alertmanager.yml").read_text())
    config["route"] |= {"group_wait": "0s", "group_interval": "1s", "group_by": ["..."]}
    for each in config["receivers"][0]["webhook_configs"]:
        each["url"] = receiver.url
    file = folder / "alertmanager.yml"
    file.write_text(yaml.safe_dump(config))
    command = [
        program, f"--config.file={file}", f"--storage.path={folder / 'alertmanager'}", "--cluster.listen-address=",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]  # fmt: skip
    with running(command, folder / "alertmanager.log", f"http://127.0.0.1:{port}/-/ready"):
        yield f"127.0.0.1:{port}"


@contextmanager
def running(
    command: list[str], log: Path, ready_url: str, stop: int = signal.SIGKILL, **options: Any
) -> Iterator[None]:  # fmt: skip
    """Run a server until the end of the context, where it gets the signal `stop`; `options` are those of Popen."""
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, **options)
    try:
        wait_for(lambda: _is_ready(ready_url), process, f"{command[0]} ({log.read_text()[-500:]})")
        yield
    finally:
        process.send_signal(stop)
        process.wait(10)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(url, timeout=1, verify=False).status_code == 200
    except httpx.HTTPError:
        return False
