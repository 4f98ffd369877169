"""Signals: the numbers of a pool that queries of a metrics server answer; add_signals() puts them into a sample."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from chairlift.autoscaler.pool_sample import PoolSample

SAMPLE_FIELDS = ("ttft_seconds", "itl_seconds", "requests_per_second", "held_requests", "held_tokens")
"""Names of queries whose values are fields of the sample; any other one is an external metric."""


class Signals(Protocol):
    """Reads numbers of the pool from elsewhere."""

    async def read(self) -> Mapping[str, float | None]:
        """Return the numbers by name; None for one that is missing. Raises nothing for a source that is down."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


async def add_signals(sample: PoolSample, signals: Signals | None) -> PoolSample:
    """Return the sample with the numbers of the queries; they take the place of what was measured under their names."""
    if signals is None:
        return sample
    values = await signals.read()
    fields: dict[str, Any] = {name: values[name] for name in SAMPLE_FIELDS if name in values}
    external = {name: value for name, value in values.items() if name not in SAMPLE_FIELDS}
    return replace(sample, external=external, **fields)
