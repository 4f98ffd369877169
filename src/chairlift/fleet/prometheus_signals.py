"""PrometheusSignals: numbers of a pool from queries of a Prometheus server, by its HTTP API /api/v1/query."""

import asyncio
import logging
import math
from collections.abc import Mapping
from typing import Any

from chairlift.core.router_errors import DiscoveryFailed
from chairlift.web.registry.json_client import JSONClient, JSONResponse

log = logging.getLogger(__name__)

QUERY_PATH = "/api/v1/query"
QUERY_SECONDS = 5.0


class PrometheusSignals:
    """Reads one number for each query. Belongs to one event loop."""

    def __init__(self, client: JSONClient, queries: Mapping[str, str]) -> None:
        """Ask the server of `client` these queries, by the name of their number."""
        self._client, self._queries = client, dict(queries)
        self._reasons: dict[str, str] = {}

    async def read(self) -> Mapping[str, float | None]:
        """Return the number of each query; None where it failed, or has no value or several."""
        values = await asyncio.gather(*(self._read(name, query) for name, query in self._queries.items()))
        return dict(zip(self._queries, values, strict=True))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _read(self, name: str, query: str) -> float | None:
        try:
            response = await self._client.call(
                "GET", QUERY_PATH, params=[("query", query)], timeout_seconds=QUERY_SECONDS
            )
            value, reason = parse_number(response)
        except DiscoveryFailed as error:
            value, reason = None, error.message
        if reason and reason != self._reasons.get(name):  # once, not in each interval
            log.warning("the query %s has no number: %s", name, reason)
        self._reasons[name] = reason
        return value


def parse_number(response: JSONResponse) -> tuple[float | None, str]:
    """Return the number of an answer, or None and what is wrong with it."""
    body: Any = response.body
    if response.status != 200 or not isinstance(body, dict) or body.get("status") != "success":
        return None, response.describe()
    try:
        kind, result = body["data"]["resultType"], body["data"]["result"]
        if kind == "scalar":
            values = [result[1]]
        elif kind == "vector":
            values = [sample["value"][1] for sample in result]
        else:
            return None, f"its result is a {kind}; a query for one number is needed"
        numbers = [float(value) for value in values]
    except (KeyError, IndexError, TypeError, ValueError):
        return None, f"the answer is not that of Prometheus: {response.describe()}"
    if len(numbers) != 1:
        return None, f"it has {len(numbers)} series; sum or average them to one" if numbers else "it has no series"
    return (numbers[0], "") if math.isfinite(numbers[0]) else (None, f"it is {numbers[0]}")
