"""KubernetesSource: the ready endpoints of a service, from its EndpointSlices, listed and watched."""

import logging
import os
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from chairlift.core.clock import Clock, SystemClock
from chairlift.core.errors import ConfigError
from chairlift.core.router_errors import DiscoveryFailed
from chairlift.router.discovery.base import Snapshot
from chairlift.router.discovery.endpoint_parser import OPTION_FIELDS, parse_endpoint
from chairlift.router.endpoint import Endpoint
from chairlift.web.registry.json_client import JSONClient, JSONResponse
from chairlift.web.registry.kubernetes_client import (
    SERVER_OPTIONS,
    SERVICE_ACCOUNT,
    VersionExpired,
    apply_event,
    find_api_server,
    list_objects,
    open_watch,
    parse_namespace,
)
from chairlift.web.registry.registry_url import parse_registry_url

log = logging.getLogger(__name__)

FORM = "kubernetes://namespace/service?port=http"
SERVICE_LABEL = "kubernetes.io/service-name"

IDLE_SECONDS = 90.0
"""Seconds without a message, a bookmark included, after which a watch is opened again: its connection may be dead."""

MAX_SLICES = 1000
MIN_WATCH_SECONDS = 1.0
"""A watch that ends sooner without a message has failed."""

MAX_EXPIRED_LISTS = 2
"""Lists in a row whose resource version may have expired before the watch brought a message."""


class KubernetesSource:
    """Endpoints of a service that are ready and do not terminate."""

    def __init__(
        self, text: str, *, environ: Mapping[str, str] | None = None, service_account: Path = SERVICE_ACCOUNT,
        idle_seconds: float = IDLE_SECONDS, clock: Clock | None = None,
    ) -> None:  # fmt: skip
        """Create the source of a URL kubernetes://namespace/service[?port=name]. Raises ConfigError.

        Without the options server, token_file and ca_file the API server is that of the pod's cluster.
        """
        url = parse_registry_url(
            text,
            options={*OPTION_FIELDS, *SERVER_OPTIONS, "port", "scheme"},
            default_port=1,
            form=FORM,
        )
        namespace, self._service = parse_namespace(url, FORM), url.path
        if not self._service or "/" in self._service:
            raise ConfigError(f"{text!r} should look like {FORM}")
        self.name = text
        self._path = f"/apis/discovery.k8s.io/v1/namespaces/{quote(namespace, safe='')}/endpointslices"
        self._port, self._scheme = url.options.get("port", ""), url.options.get("scheme", "http")
        self._defaults = {name: url.options[name] for name in OPTION_FIELDS if name in url.options}
        parse_endpoint({"url": f"{self._scheme}://localhost", **self._defaults})
        self._config = find_api_server(url, os.environ if environ is None else environ, service_account)
        self._idle_seconds = idle_seconds
        self._parsed: dict[str, tuple[Any, Snapshot]] = {}
        self._clock = SystemClock() if clock is None else clock

    async def watch(self) -> AsyncGenerator[Snapshot, None]:
        """Yield the list, and again after each change of an EndpointSlice."""
        async with JSONClient(self._config) as client:
            last: Snapshot | None = None
            num_expired = 0
            while True:
                slices, version = await self._list(client)
                num_events = 0
                try:
                    while True:
                        if (snapshot := self._snapshot(slices)) != last:
                            yield snapshot
                            last = snapshot
                        started_at, num_before = self._clock.now(), num_events
                        async with open_watch(
                            client, self._path, self._selector, version, idle_seconds=self._idle_seconds
                        ) as events:
                            async for event in events:
                                version = apply_event(slices, event)
                                num_events += 1
                                if (snapshot := self._snapshot(slices)) != last:
                                    yield snapshot
                                    last = snapshot
                        if num_events == num_before and self._clock.now() - started_at < MIN_WATCH_SECONDS:
                            raise DiscoveryFailed(f"{client.base_url} ended the watch at once")
                except VersionExpired:
                    num_expired = 0 if num_events else num_expired + 1
                    if num_expired > MAX_EXPIRED_LISTS:
                        raise DiscoveryFailed(f"the resource version {version} of a new list has expired") from None
                    log.info("the resource version %s has expired; the slices are listed again", version)

    async def _list(self, client: JSONClient) -> tuple[dict[str, Any], str]:
        """Return the slices by name, and the resource version of the list."""
        get_page = partial(_get_page, client, self._path)
        return await list_objects(get_page, self._selector, kind="EndpointSlices", limit=MAX_SLICES)

    @property
    def _selector(self) -> list[tuple[str, str]]:
        return [("labelSelector", f"{SERVICE_LABEL}={self._service}")]

    def _snapshot(self, slices: Mapping[str, Any]) -> Snapshot:
        """Return the endpoints of all slices, each URL once. Raises DiscoveryFailed for malformed slices.

        A slice that has not changed is not parsed again: an event of a large service would block the event loop.
        """
        known = self._parsed
        try:
            self._parsed = {
                name: known[name]
                if name in known and known[name][0] is slices[name]
                else (slices[name], tuple(self._endpoints(slices[name])))
                for name in sorted(slices)
            }
            found = [each for _, endpoints in self._parsed.values() for each in endpoints]
        except (KeyError, TypeError, AttributeError, ConfigError) as error:
            raise DiscoveryFailed(f"an EndpointSlice is malformed: {type(error).__name__}: {error}") from None
        return tuple({endpoint.url: endpoint for endpoint in reversed(found)}.values())[::-1]

    def _endpoints(self, each: Mapping[str, Any]) -> Iterator[Endpoint]:
        """Yield the endpoints of a slice that are ready."""
        ready = [endpoint for endpoint in each.get("endpoints") or () if _is_ready(endpoint.get("conditions") or {})]
        if not ready:
            return
        port = self._find_port(each.get("ports") or ())
        for endpoint in ready:
            zone = {"zone": endpoint["zone"]} if endpoint.get("zone") else {}
            # all addresses of an endpoint reach the same pod, so the first is enough
            address = endpoint["addresses"][0]
            host = f"[{address}]" if ":" in address else address
            yield parse_endpoint({"url": f"{self._scheme}://{host}:{port}", **zone, **self._defaults})

    def _find_port(self, ports: Any) -> int:
        """Return the number of the port with the name or number of the URL. Raises DiscoveryFailed without one."""
        usable = [each for each in ports if each.get("port") and each.get("protocol", "TCP") == "TCP"]
        for each in usable:
            if self._port in (each.get("name") or "", str(each["port"])) and (self._port or len(usable) == 1):
                return int(each["port"])
        if not self._port and len(usable) == 1:
            return int(usable[0]["port"])
        names = ", ".join(f"{each.get('name') or 'unnamed'} ({each['port']})" for each in usable) or "none"
        wanted = f"no port {self._port!r}" if self._port else "several ports, and ?port= names none"
        raise DiscoveryFailed(f"{self._service} has {wanted}; its TCP ports are: {names}")


async def _get_page(client: JSONClient, path: str, params: Sequence[tuple[str, str]]) -> JSONResponse:
    return await client.call("GET", path, params=params)


def _is_ready(conditions: Mapping[str, Any]) -> bool:
    """Return whether an endpoint takes requests; an unknown condition counts as ready, as Kubernetes defines it.

    `ready` alone is also true for pods that terminate where the service publishes addresses that are not ready.
    """
    is_serving = conditions.get("ready") is not False and conditions.get("serving") is not False
    return is_serving and not conditions.get("terminating")
