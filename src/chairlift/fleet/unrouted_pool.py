"""UnroutedPool: a pool whose router is another program, as the actuator of `chairlift autoscaler` sees it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from chairlift.autoscaler.signals import PoolSample

SAMPLE_FIELDS = ("ttft_seconds", "itl_seconds", "requests_per_second", "held_requests", "held_tokens")
"""Names of queries whose values are fields of the sample; any other one is an external metric."""


class Signals(Protocol):
    """Reads numbers of the pool from elsewhere."""

    async def read(self) -> Mapping[str, float | None]:
        """Return the numbers by name; None for one that is missing. Raises nothing for a source that is down."""
        ...


class UnroutedPool:
    """Implements PoolRouter without a router: a replica drains by itself when it is stopped."""

    def __init__(self, signals: Signals | None) -> None:
        self._signals = signals

    def set_serving(self, urls: Sequence[str]) -> None:
        """Do nothing: routers find the replicas by themselves."""

    def drain(self, url: str) -> None:
        """Do nothing: the replica drains when its cluster stops it."""

    def undrain(self, url: str) -> None:
        """Do nothing."""

    def num_open_requests(self, url: str) -> int:
        """Return 0: the replica ends its requests by itself."""
        return 0

    async def measure(self, sample: PoolSample) -> PoolSample:
        """Return the sample with the numbers of the queries."""
        if self._signals is None:
            return sample
        values = await self._signals.read()
        fields: dict[str, Any] = {name: values[name] for name in SAMPLE_FIELDS if name in values}
        external = {name: value for name, value in values.items() if name not in SAMPLE_FIELDS}
        return replace(sample, external=external, **fields)
