"""ConsulClient: healthy instances of a service, and the registration of one, through a Consul agent's HTTP API."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from chairlift.core.errors import ConfigError
from chairlift.core.router_errors import DiscoveryFailed
from chairlift.web.registry.json_client import JSONClient, JSONClientConfig, JSONResponse
from chairlift.web.registry.registry_url import TLS_OPTIONS, RegistryURL, parse_registry_url

CONSUL_FORM = "consul://127.0.0.1:8500/chairlift"
CONSUL_PORT = 8500
MARGIN_SECONDS = 5.0
"""Seconds above its wait within which a blocking query must end; Consul adds up to a 16th of the wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsulInstance:
    """One healthy instance of a service.

    Attributes:
        service_id: id of the instance.
        address: the service's address, or the node's where the service has none.
        port: port of the service.
        meta: metadata of the service.
        weight: weight of an instance whose checks pass.
    """

    service_id: str
    address: str
    port: int
    meta: Mapping[str, str]
    weight: float


def parse_consul_url(text: str, options: Collection[str] = ()) -> RegistryURL:
    """Parse a URL consul://host:port/service. Raises ConfigError."""
    url = parse_registry_url(
        text, options={*TLS_OPTIONS, "token_file", *options}, default_port=CONSUL_PORT, form=CONSUL_FORM
    )
    url.require_one_host()
    if not url.path or "/" in url.path:
        raise ConfigError(f"{text!r} has no name of a service after the host; it should look like {CONSUL_FORM}")
    return url


def consul_client_config(url: RegistryURL) -> JSONClientConfig:
    """Return how the agent of a URL is reached. Raises ConfigError."""
    return JSONClientConfig(
        base_urls=url.base_urls(), ca_file=url.file("ca_file"), cert_file=url.file("cert_file"),
        key_file=url.file("key_file"), token_file=url.file("token_file"), token_header="X-Consul-Token",
        token_prefix="",
    )  # fmt: skip


class ConsulClient:
    """Calls of one Consul agent; raises DiscoveryFailed for every failure."""

    def __init__(self, client: JSONClient) -> None:
        self._client = client

    async def list_healthy(
        self, service: str, *, tags: tuple[str, ...] = (), datacenter: str = "", index: int = 0,
        wait_seconds: float = 0.0,
    ) -> tuple[tuple[ConsulInstance, ...], int]:  # fmt: skip
        """Return the instances whose checks pass, and the index of this answer.

        With an index the call waits until the answer differs from that of the index, at most `wait_seconds`.
        """
        params = [("passing", "true"), *(("tag", tag) for tag in tags)]
        params += [("dc", datacenter)] if datacenter else []
        if index:
            params += [("index", str(index)), ("wait", f"{wait_seconds * 1000:.0f}ms")]
        response = await self._client.call(
            "GET", f"/v1/health/service/{quote(service, safe='')}", params=params,
            timeout_seconds=wait_seconds * 17 / 16 + MARGIN_SECONDS,
        )  # fmt: skip
        if response.status != HTTPStatus.OK or not isinstance(response.body, list):
            raise DiscoveryFailed(f"Consul answers with {response.describe()}")
        try:
            instances = tuple(_parse_instance(each) for each in response.body)
            return instances, int(response.headers["X-Consul-Index"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DiscoveryFailed(f"Consul answers nonsense: {type(error).__name__}: {error}") from None

    async def register(self, service: Mapping[str, Any]) -> None:
        """Register a service with its check at the agent."""
        _require_success(await self._client.call("PUT", "/v1/agent/service/register", body=service))

    async def pass_check(self, check_id: str) -> bool:
        """Report that a check passes; return False for a check that the agent does not know."""
        response = await self._client.call("PUT", f"/v1/agent/check/pass/{quote(check_id, safe='')}")
        if response.status == HTTPStatus.NOT_FOUND:
            return False
        _require_success(response)
        return True

    async def deregister(self, service_id: str) -> None:
        """Remove a service; one that the agent does not know is not an error."""
        response = await self._client.call("PUT", f"/v1/agent/service/deregister/{quote(service_id, safe='')}")
        if response.status != HTTPStatus.NOT_FOUND:
            _require_success(response)


def _require_success(response: JSONResponse) -> None:
    if response.status != HTTPStatus.OK:
        raise DiscoveryFailed(f"Consul answers with {response.describe()}")


def _parse_instance(body: Mapping[str, Any]) -> ConsulInstance:
    service = body["Service"]
    meta = service.get("Meta") or {}
    if not isinstance(meta, dict) or not all(isinstance(value, str) for value in meta.values()):
        raise TypeError(f"the metadata of {service['ID']!r} is no map of texts")
    address = service.get("Address") or body["Node"]["Address"]
    weight = (service.get("Weights") or {}).get("Passing", 1)
    if not isinstance(address, str):
        raise TypeError(f"the address of {service['ID']!r} is no text")
    return ConsulInstance(
        service_id=str(service["ID"]), address=address, port=int(service["Port"]), meta=meta, weight=float(weight),
    )  # fmt: skip
