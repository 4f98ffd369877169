"""EtcdRegistry: a replica's entry in etcd, a key that ends with its lease."""

import logging
import math

from chairlift.web.registry.etcd_client import EtcdClient, etcd_client_config, key_prefix, parse_etcd_url
from chairlift.web.registry.json_client import JSONClient
from chairlift.web.registry.replica_record import ReplicaRecord

log = logging.getLogger(__name__)

LEASE_SECONDS = 30.0
MIN_LEASE_SECONDS, MAX_LEASE_SECONDS = 1.0, 3600.0


class EtcdRegistry:
    """The entry of one replica below a prefix of keys.

    Its key is the prefix, host and port, so that a replica that restarts replaces its own entry. Its removal ends the
    lease, which removes the key only if no other process has set it since.
    """

    def __init__(self, text: str) -> None:
        """Create the entry for a URL etcd://host:port/prefix[?ttl=seconds]. Raises ConfigError."""
        url = parse_etcd_url(text, ("ttl",))
        self.lease_seconds = float(math.ceil(
            url.seconds("ttl", LEASE_SECONDS, least=MIN_LEASE_SECONDS, most=MAX_LEASE_SECONDS)
        ))  # fmt: skip
        self.name = f"etcd at {', '.join(url.hosts)}"
        self._prefix = key_prefix(url)
        self._client = JSONClient(etcd_client_config(url))
        self._etcd = EtcdClient(self._client, url)
        self._record: ReplicaRecord | None = None
        self._lease = 0
        self._foreign_lease = 0

    async def register(self, record: ReplicaRecord) -> None:
        """Set the replica's key with a new lease."""
        self._lease = await self._etcd.grant_lease(int(self.lease_seconds))
        self._record = record
        await self._put(record)

    async def renew(self) -> bool:
        """Renew the lease, and set the key again if it was deleted; return False if the lease has ended."""
        assert self._record is not None
        if not await self._etcd.renew_lease(self._lease):
            return False
        lease = await self._etcd.lease_of(self._prefix + self._record.name)
        if lease is None:
            log.warning("the key of this replica was deleted from %s and is set again", self.name)
            await self._put(self._record)
        elif lease not in (self._lease, self._foreign_lease):
            log.warning("another process is registered as %s at %s", self._record.url, self.name)
            self._foreign_lease = lease
        return True

    async def deregister(self) -> None:
        """End the lease."""
        if self._lease:
            await self._etcd.revoke_lease(self._lease)
            self._lease = 0

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _put(self, record: ReplicaRecord) -> None:
        await self._etcd.put(self._prefix + record.name, record.to_json(), self._lease)
