"""KubernetesSource: the ready endpoints of a service, from its EndpointSlices, listed and watched."""

import contextlib
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from chairlift.core.clock import Clock, SystemClock
from chairlift.core.errors import ConfigError
from chairlift.core.router_errors import DiscoveryFailed
from chairlift.router.discovery.base import Snapshot
from chairlift.router.discovery.endpoint_fields import OPTION_FIELDS, parse_endpoint
from chairlift.router.endpoint import Endpoint
from chairlift.web.registry.json_client import JSONClient, JSONClientConfig
from chairlift.web.registry.registry_url import parse_registry_url

log = logging.getLogger(__name__)

FORM = "kubernetes://namespace/service?port=http"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SERVICE_LABEL = "kubernetes.io/service-name"

WATCH_SECONDS = 240.0
"""Seconds after which the API server ends a watch, which then goes on from its last resource version."""

IDLE_SECONDS = 90.0
"""Seconds without a message, a bookmark included, after which a watch is opened again: its connection may be dead."""

PAGE_SIZE = 500
MAX_SLICES = 1000
MIN_WATCH_SECONDS = 1.0
"""A watch that ends sooner without a message has failed."""

MAX_EXPIRED_LISTS = 2
"""Lists in a row whose resource version may have expired before the watch brought a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    """How the API server is reached."""

    url: str
    token_file: Path | None
    ca_file: Path | None


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
            options={*OPTION_FIELDS, "port", "scheme", "server", "token_file", "ca_file"},
            default_port=1,
            form=FORM,
        )
        namespace, self._service = url.require_one_host().removesuffix(":1"), url.path
        if not self._service or "/" in self._service or ":" in namespace:
            raise ConfigError(f"{text!r} should look like {FORM}")
        self.name = text
        self._path = f"/apis/discovery.k8s.io/v1/namespaces/{quote(namespace, safe='')}/endpointslices"
        self._port, self._scheme = url.options.get("port", ""), url.options.get("scheme", "http")
        self._defaults = {name: url.options[name] for name in OPTION_FIELDS if name in url.options}
        parse_endpoint({"url": f"{self._scheme}://localhost", **self._defaults})
        options = {"token_file": url.file("token_file"), "ca_file": url.file("ca_file")}
        server = _find_server(
            text, url.options.get("server"), options, os.environ if environ is None else environ, service_account
        )
        self._config = JSONClientConfig(
            base_urls=(server.url,), ca_file=server.ca_file, token_file=server.token_file
        )  # fmt: skip
        self._config.tls_context()
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
                        async with self._open_watch(client, version) as events:
                            async for event in events:
                                version = _apply_event(slices, event)
                                num_events += 1
                                if (snapshot := self._snapshot(slices)) != last:
                                    yield snapshot
                                    last = snapshot
                        if num_events == num_before and self._clock.now() - started_at < MIN_WATCH_SECONDS:
                            raise DiscoveryFailed(f"{client.base_url} ended the watch at once")
                except _VersionExpired:
                    num_expired = 0 if num_events else num_expired + 1
                    if num_expired > MAX_EXPIRED_LISTS:
                        raise DiscoveryFailed(f"the resource version {version} of a new list has expired") from None
                    log.info("the resource version %s has expired; the slices are listed again", version)

    @contextlib.asynccontextmanager
    async def _open_watch(self, client: JSONClient, version: str) -> AsyncIterator[AsyncIterator[Any]]:
        """Watch the slices from a resource version on. Raises _VersionExpired and DiscoveryFailed."""
        params = [
            *self._selector, ("watch", "1"), ("resourceVersion", version), ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", f"{WATCH_SECONDS:.0f}"),
        ]  # fmt: skip
        try:
            async with client.stream("GET", self._path, params=params, idle_seconds=self._idle_seconds) as events:
                yield events
        except DiscoveryFailed as error:
            if error.details.get("status") == HTTPStatus.GONE:
                raise _VersionExpired from None
            raise

    async def _list(self, client: JSONClient) -> tuple[dict[str, Any], str]:
        """Return the slices by name, and the resource version of the list."""
        slices: dict[str, Any] = {}
        token, version = "", ""
        while True:
            params = [*self._selector, ("limit", str(PAGE_SIZE)), *([("continue", token)] if token else [])]
            response = await client.call("GET", self._path, params=params)
            if response.status == HTTPStatus.GONE and token:  # the pages have expired: begin with the first again
                slices, token = {}, ""
                continue
            if response.status != HTTPStatus.OK:
                raise DiscoveryFailed(f"{client.base_url} answers with {response.describe()}")
            try:
                version = str(response.body["metadata"]["resourceVersion"])
                slices |= {each["metadata"]["name"]: each for each in response.body["items"] or ()}
                token = response.body["metadata"].get("continue") or ""
            except (KeyError, TypeError, AttributeError) as error:
                raise DiscoveryFailed(f"the list of slices is malformed: {type(error).__name__}: {error}") from None
            if len(slices) > MAX_SLICES:
                raise DiscoveryFailed(f"{self._service} has more than {MAX_SLICES} EndpointSlices, the limit")
            if not token:
                return slices, version

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


class _VersionExpired(Exception):
    """The API server no longer knows the changes since a resource version."""


def _apply_event(slices: dict[str, Any], event: Any) -> str:
    """Apply an event of a watch and return its resource version. Raises _VersionExpired and DiscoveryFailed."""
    try:
        kind, body = event["type"], event["object"]
        if kind == "ERROR":
            if body.get("code") == HTTPStatus.GONE:
                raise _VersionExpired
            raise DiscoveryFailed(f"the watch failed: {str(body.get('message', ''))[:200]}")
        version = str(body["metadata"]["resourceVersion"])
        if kind in {"ADDED", "MODIFIED"}:
            slices[body["metadata"]["name"]] = body
        elif kind == "DELETED":
            slices.pop(body["metadata"]["name"], None)
        elif kind != "BOOKMARK":
            raise DiscoveryFailed(f"the watch has an event of the unknown type {str(kind)[:80]!r}")
        return version
    except (KeyError, TypeError, AttributeError) as error:
        raise DiscoveryFailed(f"an event of the watch is malformed: {type(error).__name__}: {error}") from None


def _is_ready(conditions: Mapping[str, Any]) -> bool:
    """Return whether an endpoint takes requests; an unknown condition counts as ready, as Kubernetes defines it.

    `ready` alone is also true for pods that terminate where the service publishes addresses that are not ready.
    """
    is_serving = conditions.get("ready") is not False and conditions.get("serving") is not False
    return is_serving and not conditions.get("terminating")


def _find_server(
    text: str, server: str | None, files: Mapping[str, Path | None], environ: Mapping[str, str], account: Path
) -> _Server:
    """Return the API server of the options, or that of the pod's cluster. Raises ConfigError."""
    if server is not None:
        parts = urlsplit(server)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/"):
            raise ConfigError(f"the option server of {text!r} must look like https://10.0.0.1:6443, got {server!r}")
        return _Server(url=server.rstrip("/"), token_file=files["token_file"], ca_file=files["ca_file"])
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigError(
            f"{text!r} needs a pod of the cluster, whose environment has KUBERNETES_SERVICE_HOST; elsewhere add "
            "?server=https://host:6443&token_file=FILE&ca_file=FILE"
        )
    name = f"[{host}]" if ":" in host else host
    return _Server(
        url=f"https://{name}:{port}", token_file=files["token_file"] or account / "token",
        ca_file=files["ca_file"] or account / "ca.crt",
    )  # fmt: skip
