"""The fleet of compose.yaml as processes: a replica is killed under load, nothing is lost, and operators see it."""

import json
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from fast_alert_rules.__main__ import write_rules
from grafana_dashboards.__main__ import DASHBOARDS
from support_compose import ComposeProcesses
from support_monitoring import PROMETHEUS_FOLDER
from support_prometheus import INTERVAL, RUNBOOKS, SPEED, AlertReceiver, PrometheusServer, wait_until
from support_server import COMPLETIONS, events
from support_services_redis import raw_command

REPLICAS = ("replica-1", "replica-2", "replica-3")
NUM_STREAMS, NUM_TOKENS = 24, 400
ONE_THREAD = {"CHAIRLIFT_CPU_THREADS": "1", "OMP_NUM_THREADS": "1"}


def faster(name: str, text: str) -> str:
    """Make Prometheus and Alertmanager SPEED times as fast; nothing else of their files is changed."""
    if name == "prometheus.yml":
        config = yaml.safe_load(text)
        config["global"] |= {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL}
        config["global"]["external_labels"]["runbooks"] = RUNBOOKS
        return str(yaml.safe_dump(config))
    if name == "alertmanager.yml":
        return text.replace("group_wait: 30s", "group_wait: 0s").replace("group_interval: 5m", "group_interval: 1s")
    return text


def is_ready(url: str) -> bool:
    try:
        return httpx.get(url, timeout=1).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture
def receiver() -> Iterator[AlertReceiver]:
    with AlertReceiver() as running:
        yield running


@pytest.fixture
def fleet(tmp_path: Path, receiver: AlertReceiver) -> Iterator[ComposeProcesses]:
    """Start what the file has, in the order of its depends_on; Grafana and Tempo are no packages of Debian."""
    webhook = int(receiver.url.rstrip("/").rpartition(":")[2])
    fleet = ComposeProcesses(tmp_path, addresses={("alert-receiver", 5001): webhook}, rewrite=faster)
    try:
        for name in ("redis", *REPLICAS):
            fleet.start(name, **ONE_THREAD)
        fleet.wait("redis", lambda: "NOAUTH" in raw_command(fleet.port("redis"), "PING"))
        fleet.start("redis-replica")
        fleet.command("prometheus")  # copies its files
        write_rules(PROMETHEUS_FOLDER / "rules", tmp_path / "prometheus" / "etc" / "prometheus" / "rules", SPEED)
        for name in REPLICAS:
            fleet.wait(name, lambda name=name: is_ready(fleet.url(name) + "/readyz"))  # type: ignore[misc]
        for name in ("prometheus", "alertmanager"):
            fleet.start(name)
            fleet.wait(name, lambda name=name: is_ready(fleet.url(name) + "/-/ready"))  # type: ignore[misc]
        fleet.start("router")
        fleet.wait("router", lambda: is_ready(fleet.url("router") + "/readyz"))
        fleet.start("nginx")
        fleet.wait("nginx", lambda: is_ready(fleet.url("nginx") + "/nginx-health"))
        yield fleet
    finally:
        fleet.end()


class Streams:
    """Streams through nginx, all at once."""

    def __init__(self, fleet: ComposeProcesses) -> None:
        self._url = fleet.url("nginx") + COMPLETIONS
        self._headers = {"authorization": f"Bearer {fleet.secret('api_key')}"}
        self._num_begun = 0

    def run(self, on_begun: Any = None) -> list[list[int]]:
        """Return the token ids of each stream; call `on_begun` when one has brought a token."""
        self._num_begun = 0
        with ThreadPoolExecutor(NUM_STREAMS) as pool:
            results = [pool.submit(self._stream, number) for number in range(NUM_STREAMS)]
            while not self._num_begun and not any(each.done() for each in results):
                time.sleep(0.001)
            if on_begun is not None:
                on_begun()
            return [each.result(120) for each in results]

    def _stream(self, number: int) -> list[int]:
        body = {
            "model": "chairlift:demo", "prompt": f"{number} + {number} = ", "max_tokens": NUM_TOKENS, "temperature": 0,
            "ignore_eos": True, "stream": True, "return_token_ids": True,
        }  # fmt: skip
        text, has_begun = "", False
        with httpx.stream("POST", self._url, json=body, headers=self._headers, timeout=120) as response:
            assert response.status_code == 200, response.read()
            for piece in response.iter_text():
                text += piece
                if not has_begun and '"token_ids"' in text:
                    has_begun = True
                    self._num_begun += 1
        assert text.endswith("data: [DONE]\n\n") and "event: error" not in text, text[-500:]
        chunks = [each for each in events(text) if each != "[DONE]" and each.get("choices")]
        return [token for each in chunks for token in each["choices"][0].get("token_ids") or ()]


def running_requests(fleet: ComposeProcesses, name: str) -> int:
    headers = {"authorization": f"Bearer {fleet.secret('replica_key')}"}
    return int(httpx.get(fleet.url(name) + "/load", headers=headers, timeout=10).json()["running_requests"])


def first_batch(fleet: ComposeProcesses, name: str) -> dict[str, Any]:
    """Return the first snapshot of a replica's batch, as the router's page gets it through nginx."""
    url, headers = fleet.url("nginx") + "/admin/replicas/live", {"authorization": f"Bearer {fleet.secret('admin_key')}"}
    with httpx.stream("GET", url, params={"replica_id": fleet.url(name)}, headers=headers, timeout=60) as response:
        assert response.status_code == 200, response.read()
        lines = response.iter_lines()
        assert "event: batch" in lines  # reads to it
        result: dict[str, Any] = json.loads(next(lines).removeprefix("data: "))
        return result


def firing(receiver: AlertReceiver) -> set[tuple[str, str]]:
    """Return (name, instance) of the alerts that the webhook has got."""
    labels = [each["labels"] for each in list(receiver.alerts) if each["status"] == "firing"]
    return {(each["alertname"], each.get("instance", "")) for each in labels}


def healthy_replicas(prometheus: PrometheusServer) -> float:
    """Return what the dashboard's panel of replicas by state says of healthy ones."""
    (query,) = [
        query for dashboard in DASHBOARDS for row in dashboard.rows for panel in row.panels for query in panel.queries
        if query.expr.startswith("sum by (state) (chairlift_router_replicas{")
    ]  # fmt: skip
    found = prometheus.query(re.sub(r"\$\w+", ".*", query.expr))
    return sum(float(each["value"][1]) for each in found if each["metric"]["state"] == "healthy")


def wait_for_healthy(prometheus: PrometheusServer, number: int) -> None:
    wait_until(lambda: healthy_replicas(prometheus) == number, lambda: str(healthy_replicas(prometheus)))


def test_commands_have_addresses_and_files_of_this_machine(tmp_path: Path) -> None:
    fleet = ComposeProcesses(tmp_path, addresses={("alert-receiver", 5001): 9})
    for name in ("redis", "redis-replica", *REPLICAS, "prometheus", "alertmanager", "router", "nginx"):
        words = fleet.command(name)
        assert not re.search(r"(replica-\d|redis|router):\d|/run/secrets", " ".join(words)), words
        for path in re.findall(rf"{tmp_path}[^\s]*", " ".join(words)):
            assert Path(path).exists(), path
        if name in (*REPLICAS, "router"):
            environ = fleet.environ(name)
            assert environ["CHAIRLIFT_HOST"] == "127.0.0.1" and environ["CHAIRLIFT_PORT"] == str(fleet.port(name))
    words = fleet.command("router")
    assert [word for word in words if word.startswith("--replica=")] == [f"--replica={fleet.url(n)}" for n in REPLICAS]
    assert fleet.command("redis-replica")[-5:-2] == ["--replicaof", "127.0.0.1", str(fleet.port("redis"))]
    text = (tmp_path / "nginx" / "etc" / "nginx" / "chairlift" / "chairlift-routers.conf").read_text("utf-8")
    assert f"default 127.0.0.1:{fleet.port('router')};" in text and "upstream chairlift" not in text


@pytest.mark.full
def test_a_killed_replica_loses_nothing_and_operators_see_it(fleet: ComposeProcesses, receiver: AlertReceiver) -> None:
    prometheus, port = PrometheusServer(fleet.url("prometheus")), fleet.port("redis-replica")
    prometheus.wait_for('sum(up{job=~"chairlift-.+"}) == 4')
    wait_for_healthy(prometheus, 3)
    assert all(first_batch(fleet, name)["total_blocks"] > 0 for name in REPLICAS)
    streams = Streams(fleet)
    reference = streams.run()
    assert all(len(tokens) == NUM_TOKENS for tokens in reference)
    killed = ""

    def kill_the_busiest() -> None:
        nonlocal killed
        open_requests = {name: running_requests(fleet, name) for name in REPLICAS}
        killed = max(open_requests, key=open_requests.__getitem__)
        assert open_requests[killed] > 0
        fleet.processes[killed].send_signal(signal.SIGKILL)

    assert streams.run(kill_the_busiest) == reference
    prometheus.wait_for("chairlift_router_request_attempts_sum > chairlift_router_request_attempts_count")
    instance = f"127.0.0.1:{fleet.port(killed)}"
    wait_until(lambda: ("ReplicaDown", instance) in firing(receiver), lambda: str(firing(receiver)))
    prometheus.wait_for(f'ALERTS{{alertname="ReplicaDown",alertstate="firing",instance="{instance}"}}')
    wait_for_healthy(prometheus, 2)
    assert prometheus.values('sum(up{job="chairlift-replica"})') == [2.0]
    assert streams.run() == reference  # two replicas do the same

    assert prometheus.values("chairlift_router_shared_state_up") == [1.0]
    password = fleet.secret("redis_password")
    assert "NOAUTH" in raw_command(port, "PING") and password not in " ".join(fleet.command("redis"))
    paths = [json.loads(line)["path"] for line in fleet.log("nginx").splitlines() if line.startswith("{")]
    assert paths.count(COMPLETIONS) == 3 * NUM_STREAMS
    for name in ("nginx", "router", *(name for name in REPLICAS if name != killed)):
        assert fleet.stop(name) == 0, fleet.log(name)[-2000:]
