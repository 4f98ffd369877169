"""UnroutedPool: a sample gets the numbers of queries, or stays without them; replicas drain by themselves."""

import asyncio

from chairlift.autoscaler.pool_sample import PoolSample
from chairlift.fleet.unrouted_pool import UnroutedPool
from support_autoscaler import FakeSignals


def test_the_sample_gets_the_numbers_of_queries() -> None:
    pool = UnroutedPool(FakeSignals({"queue": 7.0}))
    assert asyncio.run(pool.measure(PoolSample(at_seconds=1.0))).external == {"queue": 7.0}


def test_without_queries_the_sample_stays_and_replicas_drain_by_themselves() -> None:
    pool, sample = UnroutedPool(None), PoolSample(at_seconds=1.0)
    assert asyncio.run(pool.measure(sample)) is sample
    pool.set_serving(["http://a"])
    pool.drain("http://a")
    pool.undrain("http://a")
    assert pool.num_open_requests("http://a") == 0
