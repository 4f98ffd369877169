"""RouterExtension: what a program that has a router adds to the router's routes, metrics and live data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chairlift.web.route_entry import RouteEntry
from chairlift.web.service.live_feed import Collect


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterExtension:
    """Additions to a router.

    Attributes:
        routes: further routes.
        operations: path, method and OpenAPI operation of these routes.
        metrics: names of further metrics.
        topics: further events of the live data.
    """

    routes: Sequence[RouteEntry] = ()
    operations: Sequence[tuple[str, str, dict[str, Any]]] = ()
    metrics: frozenset[str] = frozenset()
    topics: Mapping[str, Collect] = field(default_factory=dict)
