"""ConsulRegistry: a replica's entry in Consul, a service with a TTL check."""

from urllib.parse import urlsplit

from chairlift.web.registry.consul_client import ConsulClient, consul_client_config, parse_consul_url
from chairlift.web.registry.json_client import JSONClient
from chairlift.web.registry.replica_record import ReplicaRecord

LEASE_SECONDS = 30.0
MIN_LEASE_SECONDS, MAX_LEASE_SECONDS = 1.0, 3600.0
MIN_REMOVAL_SECONDS = 60.0
"""Shortest time after which Consul removes a service whose check is critical."""

DEFAULT_PORTS = {"http": 80, "https": 443}


class ConsulRegistry:
    """The entry of one replica as an instance of a service, whose id holds its host and port."""

    def __init__(self, text: str) -> None:
        """Create the entry for a URL consul://host:port/service[?ttl=seconds&tag=name]. Raises ConfigError."""
        url = parse_consul_url(text, ("ttl", "tag"))
        self.lease_seconds = url.seconds("ttl", LEASE_SECONDS, least=MIN_LEASE_SECONDS, most=MAX_LEASE_SECONDS)
        self.name = f"Consul at {url.hosts[0]}"
        self._service, self._tags = url.path, url.options.get("tag", "").split(",")
        self._client = JSONClient(consul_client_config(url))
        self._consul = ConsulClient(self._client)
        self._service_id = ""

    async def register(self, record: ReplicaRecord) -> None:
        """Register the service with a check that passes from now on for its TTL."""
        parts = urlsplit(record.url)
        self._service_id = f"{self._service}-{record.name}"
        await self._consul.register({
            "ID": self._service_id, "Name": self._service, "Tags": [tag for tag in self._tags if tag],
            "Address": parts.hostname, "Port": parts.port or DEFAULT_PORTS[parts.scheme], "Meta": record.to_meta(),
            "Check": {
                "CheckID": self._check_id, "Name": "replica renews its registration", "TTL": f"{self.lease_seconds:g}s",
                "Status": "passing",
                "DeregisterCriticalServiceAfter": f"{max(MIN_REMOVAL_SECONDS, 2 * self.lease_seconds):g}s",
            },
        })  # fmt: skip

    async def renew(self) -> bool:
        """Report that the check passes; return False if Consul does not know it any more."""
        return await self._consul.pass_check(self._check_id)

    async def deregister(self) -> None:
        """Remove the service."""
        if self._service_id:
            await self._consul.deregister(self._service_id)
            self._service_id = ""

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    @property
    def _check_id(self) -> str:
        return f"service:{self._service_id}"
