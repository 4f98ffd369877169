"""UnroutedPool: numbers of queries reach their fields; everything else is left to routers and replicas."""

import asyncio
from collections.abc import Mapping

from chairlift.autoscaler.signals import PoolSample
from chairlift.fleet.unrouted_pool import UnroutedPool


class FakeSignals:
    """Numbers that the test gives."""

    async def read(self) -> Mapping[str, float | None]:
        return {"ttft_seconds": 0.5, "held_requests": None, "queue": 7.0, "gpu": None}


def test_numbers_of_queries_are_fields_or_external_metrics_and_missing_ones_stay_missing() -> None:
    sample = asyncio.run(UnroutedPool(FakeSignals()).measure(PoolSample(at_seconds=1.0, held_requests=3.0)))
    assert (sample.ttft_seconds, sample.held_requests, sample.itl_seconds) == (0.5, None, None)
    assert sample.external == {"queue": 7.0, "gpu": None}


def test_without_queries_the_sample_stays_and_replicas_drain_by_themselves() -> None:
    pool, sample = UnroutedPool(None), PoolSample(at_seconds=1.0)
    assert asyncio.run(pool.measure(sample)) is sample
    pool.set_serving(["http://a"])
    pool.drain("http://a")
    pool.undrain("http://a")
    assert pool.num_open_requests("http://a") == 0
