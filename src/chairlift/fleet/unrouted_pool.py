"""UnroutedPool: a pool whose router is another program, as the actuator sees it."""

from collections.abc import Sequence

from chairlift.autoscaler.pool_sample import PoolSample
from chairlift.fleet.query_signals import Signals, add_signals


class UnroutedPool:
    """A pool whose router is another program: a PoolRouter where a replica drains by itself when it is stopped."""

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
        return await add_signals(sample, self._signals)
