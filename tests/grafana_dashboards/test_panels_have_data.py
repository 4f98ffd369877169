"""Every panel of every dashboard has data: its queries run on a real Prometheus that scrapes a fleet under load."""

import math
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from grafana_dashboards.__main__ import DASHBOARDS
from support_prometheus import PrometheusServer, prometheus, wait_until
from support_repeated import repeated
from support_server import ADMIN_KEY, CHAT, HELLO, TESTS, running_server

pytestmark = pytest.mark.full


def with_values(expr: str) -> str:
    """Return a query with values in place of Grafana's variables: everything, and the shortest useful range."""
    return re.sub(r"\$\w+", ".*", expr.replace("$__rate_interval", "5s"))


def expected_queries() -> dict[str, str]:
    """Return every query that must have data, by dashboard, panel and query."""
    return {
        f"{dashboard.name}: {panel.title}: {query.expr}": with_values(query.expr)
        for dashboard in DASHBOARDS
        for row in dashboard.rows
        for panel in row.panels
        for query in panel.queries
        if row.needs != "an NVIDIA GPU"
    }


def has_number(server: PrometheusServer, expr: str) -> bool:
    return not all(map(math.isnan, server.values(expr)))


def wait_for_data(server: PrometheusServer, queries: dict[str, str]) -> None:
    """Wait until each query has had a number; a scrape that a busy machine misses takes no query back."""
    left = dict(queries)

    def have_all() -> bool:
        for name in [name for name, expr in left.items() if has_number(server, expr)]:
            del left[name]
        return not left

    wait_until(have_all, lambda: "\n".join(left))


def values_of(server: PrometheusServer, metric: str, label: str) -> list[str]:
    url = f"{server.url}/api/v1/label/{label}/values"
    values: list[str] = httpx.get(url, params={"match[]": metric}).json()["data"]
    return values


@contextmanager
def load(url: str) -> Iterator[None]:
    """Send streams, whole responses and invalid requests until the end of the context."""
    bodies: list[dict[str, Any]] = [
        {**HELLO, "stream": True, "max_tokens": 20, "ignore_eos": True}, {**HELLO, "max_tokens": 5},
        {**HELLO, "temperature": 99},
    ]  # fmt: skip

    with repeated([partial(httpx.post, url + CHAT, json=body, timeout=30) for body in bodies]):
        yield


def test_no_panel_is_empty_and_every_variable_has_values(tmp_path: Path) -> None:
    state = tmp_path / "state"
    command = [
        sys.executable, str(TESTS / "fleet_main.py"), "--port", "0", "--state-dir", str(state), "--min-replicas", "2",
        "--max-replicas", "2", "--slo-ttft-ms", "500", "--slo-itl-ms", "100",
    ]  # fmt: skip
    with ExitStack() as stack:
        fleet = stack.enter_context(running_server(command, {"CHAIRLIFT_ADMIN_KEY": ADMIN_KEY})).wait_until_ready()
        stack.callback(fleet.stop)

        def urls() -> list[str]:
            headers = {"authorization": f"Bearer {ADMIN_KEY}"}
            replicas = httpx.get(f"{fleet.url}/admin/fleet", headers=headers).json()["replicas"]
            return [each["url"] for each in replicas if each["state"] == "ready"]

        wait_until(lambda: len(urls()) == 2, lambda: fleet.log)
        jobs = {"chairlift-router": [fleet.url], "chairlift-replica": urls()}
        server = stack.enter_context(prometheus(tmp_path, jobs, keys={"chairlift-replica": state / "replica.key"}))
        with load(fleet.url):
            wait_for_data(server, expected_queries())
        for dashboard in DASHBOARDS:
            for variable in dashboard.variables:
                assert values_of(server, variable.metric, variable.label), variable


def test_a_query_without_a_number_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    server = PrometheusServer("")
    for result, expected in (([], False), ([{"value": [0, "NaN"]}], False), ([{"value": [0, "0"]}], True)):
        monkeypatch.setattr(server, "query", lambda _, result=result: result)
        assert has_number(server, "x") is expected
    queries = expected_queries()
    assert len(queries) > 80 and not any("gpu" in each for each in queries)
    assert not any("$" in each for each in queries.values())
