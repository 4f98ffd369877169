"""RoutedPool: the fleet's router, as the actuator of its pool sees it."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from chairlift.autoscaler.pool_sample import PoolSample
from chairlift.core.errors import NotFound
from chairlift.fleet.cluster_discovery_source import ClusterSource
from chairlift.fleet.query_signals import Signals, add_signals
from chairlift.router.endpoint import Endpoint, ReplicaKind
from chairlift.router.router import Router

MIN_RATE_SECONDS = 0.5
"""Least time over which arrivals are counted; a sample that comes sooner has the last rate."""


class RoutedPool:
    """Implements PoolRouter over a Router and the discovery source that it reads."""

    def __init__(
        self, router: Router, source: ClusterSource, slo_quantile: float = 0.95, signals: Signals | None = None
    ) -> None:  # fmt: skip
        """`slo_quantile` is the share of the requests that must meet the targets of the latencies."""
        self._router, self._source, self._slo_quantile, self._signals = router, source, slo_quantile, signals
        self._measured_at, self._num_arrivals, self._rate = router.clock.now(), 0, 0.0

    def set_serving(self, urls: Sequence[str]) -> None:
        """Use these replicas, and no others."""
        self._source.set([Endpoint(url=url, kind=ReplicaKind.CHAIRLIFT) for url in urls])

    def drain(self, url: str) -> None:
        """Send a replica no new requests, and hand its streams over; an unknown one is not an error."""
        with contextlib.suppress(NotFound):
            self._router.drain_replica(url)

    def undrain(self, url: str) -> None:
        """Use a replica again; an unknown one is not an error."""
        with contextlib.suppress(NotFound):
            self._router.replicas.undrain(url, self._router.clock.now())

    def num_open_requests(self, url: str) -> int:
        """Return how many requests are open there."""
        return self._router.replicas.open_requests().get(url, 0)

    async def measure(self, sample: PoolSample) -> PoolSample:
        """Return the sample with held requests, latencies, rate and the numbers of queries.

        Without requests the latencies are zero.
        """
        router, now = self._router, self._router.clock.now()
        telemetry = router.telemetry
        if (seconds := now - self._measured_at) >= MIN_RATE_SECONDS:
            self._rate = (telemetry.num_arrivals - self._num_arrivals) / seconds
            self._measured_at, self._num_arrivals = now, telemetry.num_arrivals
        measured = replace(
            sample, held_requests=router.num_requests_without_replica, held_tokens=router.hold.num_tokens,
            requests_per_second=self._rate,
            ttft_seconds=telemetry.first_tokens.quantile(self._slo_quantile, now) or 0.0,
            itl_seconds=telemetry.inter_tokens.quantile(self._slo_quantile, now) or 0.0,
        )  # fmt: skip
        return await add_signals(measured, self._signals)
