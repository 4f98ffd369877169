"""Router processes for tests, in front of server processes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import support_server
from support_server import Server


@contextmanager
def router_server(
    *replicas: Server, options: tuple[str, ...] = (), is_forked: bool = True, **environ: str
) -> Iterator[Server]:
    """Start `chairlift router` on a free port, in front of servers that are ready."""
    named = [word for replica in replicas for word in ("--replica", replica.url)]
    with support_server.router_server(*named, *options, is_forked=is_forked, **environ) as router:
        yield router


@contextmanager
def direct_or_routed(place: str, replica: Server, **options: Any) -> Iterator[Server]:
    """Yield a server itself for the place "direct", else a router in front of it with these options."""
    if place == "direct":
        yield replica
        return
    with router_server(replica, **options) as router:
        yield router
