"""EtcdSource: the replicas below a prefix of etcd's keys, listed once and watched from that revision on."""

import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import orjson

from chairlift.core.clock import Clock, SystemClock
from chairlift.core.errors import ConfigError
from chairlift.core.router_errors import DiscoveryFailed
from chairlift.router.discovery.base import Snapshot
from chairlift.router.discovery.endpoint_parser import OPTION_FIELDS, parse_endpoint
from chairlift.router.endpoint import Endpoint
from chairlift.web.registry.etcd_client import EtcdClient, EtcdKey, etcd_client_config, key_prefix, parse_etcd_url
from chairlift.web.registry.json_client import JSONClient

log = logging.getLogger(__name__)

IDLE_SECONDS = 60.0
"""Seconds of a silent watch after which the keys are listed again, because the connection may be dead."""

MIN_WATCH_SECONDS = 1.0
"""A watch that ends sooner without a change has failed."""


class EtcdSource:
    """Replicas whose records are values of etcd: JSON as a replica registers it, or a URL alone."""

    def __init__(self, text: str, *, idle_seconds: float = IDLE_SECONDS, clock: Clock | None = None) -> None:
        """Create the source of a URL etcd://host:port/prefix. Raises ConfigError."""
        self._url = url = parse_etcd_url(text, OPTION_FIELDS)
        self.name = text
        self._config, self._prefix = etcd_client_config(url), key_prefix(url)
        self._config.tls_context()
        self._defaults = {name: url.options[name] for name in OPTION_FIELDS if name in url.options}
        parse_endpoint({"url": "http://localhost", **self._defaults})
        self._idle_seconds = idle_seconds
        self._last_revision = 0
        self._clock = SystemClock() if clock is None else clock

    async def watch(self) -> AsyncGenerator[Snapshot, None]:
        """Yield the list, and again after each change of a key.

        A revision that goes backwards is that of a store that lost its data: an empty list comes before the new one,
        because replicas that are missing in it may not have registered again yet.
        """
        async with JSONClient(self._config) as client:
            etcd = EtcdClient(client, self._url)
            last: Snapshot | None = None
            while True:
                keys, revision = await etcd.list_keys(self._prefix)
                if revision < self._last_revision:
                    log.warning("etcd's revision went from %d to %d: it lost data", self._last_revision, revision)
                    yield (last := ())
                self._last_revision = revision
                values = {each.key: each.value for each in keys}
                endpoints = {each.key: _parse_record(each, self._defaults) for each in keys}
                if (snapshot := _snapshot(endpoints)) != last:
                    yield snapshot
                    last = snapshot
                started_at, num_changes, is_compacted = self._clock.now(), 0, False
                async with etcd.watch(self._prefix, revision + 1, idle_seconds=self._idle_seconds) as changes:
                    async for change in changes:
                        self._last_revision = max(self._last_revision, change.revision)
                        if is_compacted := change.is_compacted:
                            log.info("etcd has compacted the revision %d; the replicas are listed again", revision)
                            break
                        for each in change.puts:
                            if values.get(each.key) != each.value:
                                values[each.key] = each.value
                                endpoints[each.key] = _parse_record(each, self._defaults)
                        for key in change.deletes:
                            values.pop(key, None)
                            endpoints.pop(key, None)
                        num_changes += 1
                        if (snapshot := _snapshot(endpoints)) != last:
                            yield snapshot
                            last = snapshot
                if not is_compacted and num_changes <= 1 and self._clock.now() - started_at < MIN_WATCH_SECONDS:
                    raise DiscoveryFailed(f"{client.base_url} ended the watch at once")


def _snapshot(endpoints: Mapping[str, Endpoint | None]) -> Snapshot:
    """Return the valid endpoints in order of their keys. Raises DiscoveryFailed if none of several is valid."""
    valid = tuple(endpoint for _, endpoint in sorted(endpoints.items()) if endpoint is not None)
    if endpoints and not valid:
        raise DiscoveryFailed(f"none of the {len(endpoints)} values is the record of a replica")
    return valid


def _parse_record(key: EtcdKey, defaults: Mapping[str, Any]) -> Endpoint | None:
    """Return the endpoint of a key's value, or None for a value that is not valid."""
    text = key.value.decode("utf-8", "replace").strip()
    try:
        record = orjson.loads(text) if text.startswith("{") else {"url": text}
        return parse_endpoint({**defaults, **record})
    except (ConfigError, ValueError) as error:
        log.warning("the value of the key %s is not the record of a replica: %s", key.key, error)
        return None
