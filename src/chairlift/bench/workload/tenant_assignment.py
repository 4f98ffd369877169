"""assign_tenants: gives each request of a workload a random tenant, by shares."""

import math
from collections.abc import Mapping
from dataclasses import replace
from random import Random

from chairlift.bench.workload.workload import Workload
from chairlift.core.errors import ConfigError


def assign_tenants(workload: Workload, tenants: Mapping[str, float]) -> Workload:
    """Assign each request to a random tenant by shares of the load, such as {"big": 10, "small": 1}.

    Raises ConfigError when there is no tenant, or a share is not positive.
    """
    if not tenants or not all(0 < share < math.inf for share in tenants.values()):
        raise ConfigError(f"tenants need positive shares, got {dict(tenants)}", option="tenants")
    rng, total = Random(f"tenants {workload.seed}"), sum(tenants.values())
    items = [replace(item, tenant=_picked(rng.random() * total, tenants)) for item in workload.items]
    return replace(workload, items=tuple(items))


def _picked(point: float, tenants: Mapping[str, float]) -> str:
    for name, share in tenants.items():
        point -= share
        if point < 0:
            return name
    return name
