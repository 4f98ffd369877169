"""Router processes for tests, in front of server processes."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support_server import Server, running_server


@contextmanager
def router_server(*replicas: Server, options: tuple[str, ...] = (), **environ: str) -> Iterator[Server]:
    """Start `chairlift router` on a free port, in front of servers that are ready."""
    named = [word for replica in replicas for word in ("--replica", replica.url)]
    with running_server(
        [sys.executable, "-m", "chairlift", "router", "--port", "0", *named, *options], environ
    ) as router:
        yield router.wait_until_ready()


@contextmanager
def direct_or_routed(place: str, replica: Server, **options: Any) -> Iterator[Server]:
    """Yield a server itself for the place "direct", else a router in front of it with these options."""
    if place == "direct":
        yield replica
        return
    with router_server(replica, **options) as router:
        yield router
