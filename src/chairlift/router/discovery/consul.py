"""ConsulSource: the healthy instances of a service, by blocking queries with Consul's index."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from chairlift.core.errors import ConfigError
from chairlift.core.router_errors import DiscoveryFailed
from chairlift.router.discovery.base import Snapshot
from chairlift.router.discovery.endpoint_parser import OPTION_FIELDS, parse_endpoint
from chairlift.router.endpoint import Endpoint
from chairlift.web.registry.consul_client import ConsulClient, ConsulInstance, consul_client_config, parse_consul_url
from chairlift.web.registry.json_client import JSONClient

log = logging.getLogger(__name__)

WAIT_SECONDS = 55.0
"""Longest blocking query."""

MIN_QUERY_SECONDS = 0.1
"""Shortest time between two queries, for an index that changes all the time."""


class ConsulSource:
    """Instances of a service whose checks pass."""

    def __init__(self, text: str, *, wait_seconds: float = WAIT_SECONDS) -> None:
        """Create the source of a URL consul://host:port/service[?tag=a,b&dc=name]. Raises ConfigError."""
        url = parse_consul_url(text, (*OPTION_FIELDS, "tag", "dc", "scheme"))
        self.name = text
        self._config = consul_client_config(url)
        self._config.tls_context()
        self._service, self._datacenter = url.path, url.options.get("dc", "")
        self._tags = tuple(filter(None, url.options.get("tag", "").split(",")))
        self._scheme = url.options.get("scheme", "http")
        self._defaults = {name: url.options[name] for name in OPTION_FIELDS if name in url.options}
        parse_endpoint({"url": f"{self._scheme}://localhost", **self._defaults})
        self._wait_seconds = wait_seconds
        self._last_index = 0

    async def watch(self) -> AsyncGenerator[Snapshot, None]:
        """Yield the list, and again after each change of the service's instances or of their checks.

        An index that goes backwards is that of a store that lost its data, or of a restored snapshot: an empty list
        comes before the new one, because instances that are missing in it may not have registered again yet.
        """
        async with JSONClient(self._config) as client:
            consul, index = ConsulClient(client), 0
            last: Snapshot | None = None
            while True:
                instances, new_index = await consul.list_healthy(
                    self._service, tags=self._tags, datacenter=self._datacenter, index=index,
                    wait_seconds=self._wait_seconds,
                )  # fmt: skip
                if new_index < 1:
                    raise DiscoveryFailed(f"Consul answers with the index {new_index}, which should be above 0")
                if new_index < self._last_index:
                    log.warning("Consul's index went from %d to %d: it lost data", self._last_index, new_index)
                    yield (last := ())
                index = 0 if new_index < index else new_index  # the query after it does not wait
                self._last_index = new_index
                if (snapshot := self._snapshot(instances)) != last:
                    yield snapshot
                    last = snapshot
                await asyncio.sleep(MIN_QUERY_SECONDS)

    def _snapshot(self, instances: tuple[ConsulInstance, ...]) -> Snapshot:
        """Return the valid endpoints. Raises DiscoveryFailed if there are instances and none is valid."""
        valid = tuple(each for each in map(self._parse_instance, instances) if each is not None)
        if instances and not valid:
            raise DiscoveryFailed(f"none of the {len(instances)} instances of {self._service!r} is a replica")
        return valid

    def _parse_instance(self, instance: ConsulInstance) -> Endpoint | None:
        host = f"[{instance.address}]" if ":" in instance.address else instance.address
        fields: Mapping[str, Any] = {
            "url": f"{self._scheme}://{host}:{instance.port}", "weight": instance.weight, **self._defaults,
            **instance.meta,
        }  # fmt: skip
        try:
            return parse_endpoint(fields)
        except ConfigError as error:
            log.warning("the instance %s of Consul is not a replica: %s", instance.service_id, error)
            return None
