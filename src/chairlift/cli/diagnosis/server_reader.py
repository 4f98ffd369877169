"""ServerReader: reads the routes of a live server at once, each within a time limit of its own."""

import http.client
import queue
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from urllib.parse import urlencode

from chairlift.cli.diagnosis.server_snapshot import Part, ServerSnapshot
from chairlift.cli.http_request import error_reason, send_request, server_url

PART_SECONDS = 8.0
"""Seconds for one route. A replica's /admin/debug waits for its engine for some seconds."""

PARTS: Mapping[str, str] = {
    "livez": "/livez", "readyz": "/readyz", "health": "/health", "version": "/version", "load": "/load",
    "metrics": "/metrics", "debug": "/admin/debug",
}  # fmt: skip
"""Routes that are read, by the name of the part."""

REPLICA_REPORT = "/admin/replicas/debug"
"""Route of a router that has the admin key of its replicas: the /admin/debug of one of them."""

SECOND_PARTS = ("load", "metrics")
"""Parts that are read twice, to see what changes; of a router and an autoscaler the report, too."""

MAX_SERVERS = 16
"""Servers that are read at the same time."""

ADMIN = "/admin/"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The keys that a server gets.

    Attributes:
        api: the key of all routes but those of administrators; "" for none.
        admin: the key of the routes under /admin/; "" for none.
    """

    api: str = ""
    admin: str = ""


class ServerReader:
    """Reads one server."""

    def __init__(
        self, url: str, keys: Keys, part_seconds: float = PART_SECONDS, tls: ssl.SSLContext | None = None
    ) -> None:
        """Check the URL; `tls` is that of tls_context(), None trusts the system's authorities. Raises ConfigError."""
        self.url = server_url(url)
        self.keys, self.part_seconds, self.tls = keys, part_seconds, tls

    def read(self, names: Sequence[str] = tuple(PARTS)) -> ServerSnapshot:
        """Return these parts, which are read at the same time; each has its response or its error."""
        wall_from = time.time()
        calls = {name: partial(self._read, PARTS[name]) for name in names}
        results = call_within(calls, self.part_seconds)
        late = f"no complete answer within {self.part_seconds:g} s"
        parts = {
            name: Part(path=PARTS[name], error=late, seconds=self.part_seconds)
            if (part := results[name]) is None
            else part
            for name in names
        }
        return ServerSnapshot(
            url=self.url, at_seconds=time.monotonic(), wall_from=wall_from, wall_to=time.time(), parts=parts
        )  # fmt: skip

    def read_reports(self, replicas: Sequence[str]) -> dict[str, Part]:
        """Return the reports of replicas that this router could read, MAX_SERVERS at a time."""
        reports: dict[str, Part] = {}
        for start in range(0, len(replicas), MAX_SERVERS):
            some = replicas[start : start + MAX_SERVERS]
            calls = {url: partial(self._read, f"{REPLICA_REPORT}?{urlencode({'replica_id': url})}") for url in some}
            parts = call_within(calls, self.part_seconds)
            reports |= {url: part for url, part in parts.items() if part is not None and part.is_ok}
        return reports

    def _read(self, path: str) -> Part:
        key = self.keys.admin if path.startswith(ADMIN) else self.keys.api
        start = time.monotonic()
        try:
            status, body = send_request(self.url + path, key, timeout_seconds=self.part_seconds, tls=self.tls)
        except (OSError, http.client.HTTPException, ValueError) as error:
            return Part(path=path, error=error_reason(error), seconds=time.monotonic() - start)
        return Part(path=path, status=status, body=body, seconds=time.monotonic() - start, had_key=bool(key))


def call_within(calls: Mapping[str, Callable[[], T]], seconds: float) -> dict[str, T | None]:
    """Call functions at the same time; None is the result of one that takes longer than `seconds` or raises.

    A thread that is late is left behind: a server that sends a byte now and then could hold it for ever.
    """
    results: dict[str, T | None] = dict.fromkeys(calls)

    def call(name: str) -> None:
        results[name] = calls[name]()

    threads = [threading.Thread(target=call, args=(name,), daemon=True) for name in calls]
    until = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return dict(results)


def read_all(readers: Sequence[ServerReader], names: Sequence[str]) -> list[ServerSnapshot]:
    """Return a snapshot of each server, MAX_SERVERS at a time; each read ends within its time limit.

    An interrupt ends the call at once, and leaves the threads behind.
    """
    waiting: queue.SimpleQueue[tuple[ServerReader, Future[ServerSnapshot]]] = queue.SimpleQueue()
    results = [Future[ServerSnapshot]() for _ in readers]
    for pair in zip(readers, results, strict=True):
        waiting.put(pair)

    def work() -> None:
        with suppress(queue.Empty):
            while True:
                reader, result = waiting.get_nowait()
                try:
                    result.set_result(reader.read(names))
                except Exception as error:
                    result.set_exception(error)

    for _ in readers[:MAX_SERVERS]:
        threading.Thread(target=work, daemon=True).start()
    return [result.result() for result in results]
