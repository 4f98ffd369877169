"""assign_tenants: tenants get their shares of the requests; invalid shares, rates and workloads are refused."""

import math
from collections import Counter

import pytest

from chairlift.bench.workload.generators import generate
from chairlift.bench.workload.poisson_arrivals import with_poisson_arrivals
from chairlift.bench.workload.tenant_assignment import assign_tenants
from chairlift.core.errors import ConfigError


def test_tenants_get_their_shares_of_the_load() -> None:
    made = assign_tenants(generate("uniform", vocab_size=9, count=4000), {"big": 10, "small": 1})
    counts = Counter(item.tenant for item in made.items)
    assert set(counts) == {"big", "small"}
    assert counts["small"] / 4000 == pytest.approx(1 / 11, abs=0.015)
    assert assign_tenants(generate("uniform", vocab_size=9, count=4), {"a": 1e-300}).items[0].tenant == "a"


def test_what_cannot_be_is_refused() -> None:
    some = generate("uniform", vocab_size=9, count=2)
    with pytest.raises(ConfigError, match=r"unknown workload 'short'; available are longtail, broadtail"):
        generate("short", vocab_size=9)
    with pytest.raises(ConfigError, match="requests must be at least 1, got 0"):
        generate("w1", vocab_size=9, count=0)
    with pytest.raises(ConfigError, match="at a rate of 1e-12 per second the last request arrives after"):
        with_poisson_arrivals(some, 1e-12)
    for rate in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="rate must be a positive number"):
            with_poisson_arrivals(some, rate)
    for tenants in ({}, {"a": 0.0}, {"a": -1.0}, {"a": math.nan}):
        with pytest.raises(ConfigError, match="tenants need positive shares"):
            assign_tenants(some, tenants)
