"""FleetReader: reads the load of a replica, or of the replicas of a router, and computes rates from their counters."""

import http.client
import json
import math
import re
import ssl
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from chairlift.cli.http_request import error_reason, send_request, server_url
from chairlift.core.errors import ChairliftError

REPLY_SECONDS = 3.0
"""Seconds that a server may take to reply; then it counts as down."""

DOWN = "down"
_DENIED = (http.client.UNAUTHORIZED, http.client.FORBIDDEN)
_SERIES = re.compile(r"^chairlift_(\w+?)(?:_total)?(?:\{.*\})? (\S+)$", re.MULTILINE)


class FleetAccessDenied(ChairliftError):
    """The server rejects the API key."""

    code = "fleet_access_denied"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRow:
    """One replica at one moment; None is a value that its server does not report.

    Attributes:
        replica: URL of the replica.
        state: state as the server names it, or "down".
        reason: why it is in this state; "" if unknown.
        kind: chairlift or openai; "" if unknown.
        weight: share of the router's requests.
        running: requests that run.
        waiting: requests that wait for their first step.
        open_requests: requests that the router has open there.
        attempts: requests that the router has sent there.
        output_tokens: output tokens since the start of the replica.
        prompt_tokens: prompt tokens since the start of the replica.
        cached_tokens: prompt tokens taken from the prefix cache since the start of the replica.
        kv_usage_ratio: share of the KV cache that requests hold.
        tokens_per_second: output tokens a second since the former reading.
        cache_hit_ratio: share of cached prompt tokens since the former reading, or since the start.
    """

    replica: str
    state: str
    reason: str = ""
    kind: str = ""
    weight: float | None = None
    running: float | None = None
    waiting: float | None = None
    open_requests: float | None = None
    attempts: float | None = None
    output_tokens: float | None = None
    prompt_tokens: float | None = None
    cached_tokens: float | None = None
    kv_usage_ratio: float | None = None
    tokens_per_second: float | None = None
    cache_hit_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReading:
    """Everything that a server reported at one moment.

    Attributes:
        url: URL of the server.
        at_seconds: monotonic time of the reading.
        service: "router", "replica" or "down".
        error: why the server is down; "" otherwise.
        rows: the replicas.
        metrics: sum of each metric over its labels, without the prefix `chairlift_` and the suffix `_total`.
        tokens_per_second: output tokens a second of the whole server since the former reading; None if unknown.
    """

    url: str
    at_seconds: float
    service: str
    error: str = ""
    rows: tuple[FleetRow, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    tokens_per_second: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the reading as a JSON object; metrics are those of requests, tokens and attempts."""
        words = ("attempt", "request", "token", "router")
        metrics = {
            name: value
            for name, value in sorted(self.metrics.items())
            if any(word in name for word in words) and not name.endswith("_bucket")
        }
        return {
            "url": self.url, "service": self.service, "error": self.error,
            "tokens_per_second": self.tokens_per_second, "replicas": [asdict(row) for row in self.rows],
            "metrics": metrics,
        }  # fmt: skip


class FleetReader:
    """Reads one server again and again; the rates of a reading are those since the former one.

    Attributes:
        url: URL of the server.
    """

    def __init__(self, url: str, api_key: str = "", admin_key: str = "", tls: ssl.SSLContext | None = None) -> None:
        """Check the URL; `tls` is that of tls_context(), None trusts the system's authorities. Raises ConfigError."""
        self.url, self._tls = server_url(url), tls
        self._keys = [key for key in (admin_key, api_key) if key]
        self._former: FleetReading | None = None

    def read(self) -> FleetReading:
        """Return the server's load; a server that does not respond is down. Raises FleetAccessDenied."""
        now = time.monotonic()
        try:
            reading = self._read(now)
        except (OSError, http.client.HTTPException, ValueError) as error:
            text = error_reason(error)
            row = FleetRow(replica=self.url, state=DOWN, reason=text)
            reading = FleetReading(url=self.url, at_seconds=now, service=DOWN, error=text, rows=(row,))
        reading = with_rates(reading, self._former)
        if reading.service != DOWN:
            self._former = reading
        return reading

    def _read(self, now: float) -> FleetReading:
        status, replicas = self._get("/admin/replicas")
        if status == http.client.OK:
            rows = tuple(row_of_replica(each) for each in _objects(_json_of("/admin/replicas", replicas)))
            return FleetReading(url=self.url, at_seconds=now, service="router", rows=rows, metrics=self._metrics())
        load_status, load = self._get("/load")
        if load_status in _DENIED:
            raise FleetAccessDenied(
                f"{self.url} rejects the API key with status {load_status}; set CHAIRLIFT_ADMIN_KEY or "
                "CHAIRLIFT_API_KEY"
            )
        if load_status != http.client.OK:
            raise ValueError(f"/load has status {load_status}")
        fields = _json_of("/load", load)
        if not isinstance(fields, dict):
            raise ValueError("/load is no JSON object")
        row = row_of_replica({"replica_id": self.url, "state": fields.get("state"), "load": fields})
        return FleetReading(url=self.url, at_seconds=now, service="replica", rows=(row,), metrics=self._metrics())

    def _metrics(self) -> Mapping[str, float]:
        status, text = self._get("/metrics")
        return parse_metrics(text.decode(errors="replace")) if status == http.client.OK else {}

    def _get(self, path: str) -> tuple[int, bytes]:
        """Return status and body of a route; tries the other key if one is rejected."""
        status, body = 0, b""
        for key in self._keys or [""]:
            status, body = send_request(self.url + path, key, timeout_seconds=REPLY_SECONDS, tls=self._tls)
            if status not in _DENIED:
                break
        return status, body


def parse_metrics(text: str) -> dict[str, float]:
    """Return the sum of each metric over its labels, from Prometheus' text format, if it is a finite number."""
    sums: dict[str, float] = {}
    for name, value in _SERIES.findall(text):
        try:
            sums[name] = sums.get(name, 0.0) + float(value)
        except ValueError:
            continue
    return {name: value for name, value in sums.items() if math.isfinite(value)}


def row_of_replica(fields: Mapping[str, Any]) -> FleetRow:
    """Return the row of a replica as /admin/replicas lists it, with its load report in `load`."""
    load = fields.get("load")
    load = load if isinstance(load, dict) else {}
    usage, total, free = _number(load, "kv_usage_ratio"), _number(load, "total_blocks"), _number(load, "free_blocks")
    if usage is None and total and free is not None:
        usage = min(1.0, max(0.0, 1 - free / total))
    return FleetRow(
        replica=str(fields.get("replica_id", "?")),
        state=str(fields.get("state") or "unknown"),
        reason=str(fields.get("reason") or ""),
        kind=str(fields.get("kind") or ""),
        weight=_number(fields, "weight"),
        running=_number(load, "running_requests"),
        waiting=_number(load, "waiting_requests"),
        open_requests=_number(fields, "open_requests"),
        attempts=_number(fields, "num_attempts"),
        output_tokens=_number(load, "output_tokens"),
        prompt_tokens=_number(load, "prompt_tokens"),
        cached_tokens=_number(load, "cached_tokens"),
        kv_usage_ratio=usage,
    )


def with_rates(reading: FleetReading, former: FleetReading | None) -> FleetReading:
    """Return a reading with its rates since the former one; a replica that restarted has none in this reading."""
    seconds = 0.0 if former is None else reading.at_seconds - former.at_seconds
    rows_before = {} if former is None else {row.replica: row for row in former.rows}
    rows = []
    for row in reading.rows:
        before = rows_before.get(row.replica)
        tokens = _increase(row.output_tokens, None if before is None else before.output_tokens)
        prompt = _increase(row.prompt_tokens, None if before is None else before.prompt_tokens)
        cached = _increase(row.cached_tokens, None if before is None else before.cached_tokens)
        if not prompt or cached is None:
            prompt, cached = row.prompt_tokens, row.cached_tokens
        rows.append(
            replace(
                row,
                tokens_per_second=tokens / seconds if tokens is not None and seconds > 0 else None,
                cache_hit_ratio=cached / prompt if prompt and cached is not None else None,
            )
        )
    metrics_before: Mapping[str, float] = {} if former is None else former.metrics
    total = _increase(reading.metrics.get("output_tokens"), metrics_before.get("output_tokens"))
    rate = total / seconds if total is not None and seconds > 0 else None
    return replace(reading, rows=tuple(rows), tokens_per_second=rate)


def _increase(now: float | None, before: float | None) -> float | None:
    """Return how much a counter grew; None if it is unknown or began anew."""
    return None if now is None or before is None or now < before else now - before


def _objects(value: object) -> list[dict[str, Any]]:
    """Return the replicas of /admin/replicas: a list, or an object with the list in `replicas`. Raises ValueError."""
    rows = value.get("replicas") if isinstance(value, dict) else value
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("/admin/replicas is no JSON list of objects")
    return rows


def _json_of(path: str, body: bytes) -> Any:
    """Return the value of a response. Raises ValueError with a sentence."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is no JSON; another program may answer there") from None


def _number(fields: Mapping[str, Any], name: str) -> float | None:
    """Return a field that is a finite number; None for another one."""
    value = fields.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= sys.float_info.max:
        return None
    return float(value)
