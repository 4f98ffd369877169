"""add_signals: numbers of queries reach their fields of a sample, and missing ones stay missing."""

import asyncio

from chairlift.autoscaler.pool_sample import PoolSample
from chairlift.fleet.query_signals import add_signals
from support_autoscaler import FakeSignals


def test_numbers_of_queries_are_fields_or_external_metrics_and_missing_ones_stay_missing() -> None:
    signals = FakeSignals({"ttft_seconds": 0.5, "held_requests": None, "queue": 7.0, "gpu": None})
    sample = asyncio.run(add_signals(PoolSample(at_seconds=1.0, held_requests=3.0), signals))
    assert (sample.ttft_seconds, sample.held_requests, sample.itl_seconds) == (0.5, None, None)
    assert sample.external == {"queue": 7.0, "gpu": None}


def test_without_queries_the_sample_stays() -> None:
    sample = PoolSample(at_seconds=1.0)
    assert asyncio.run(add_signals(sample, None)) is sample
