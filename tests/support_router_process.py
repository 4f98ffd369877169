"""Router processes for tests, in front of server processes."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from support_server import Server, running_server


@contextmanager
def router_server(*replicas: Server, options: tuple[str, ...] = (), **environ: str) -> Iterator[Server]:
    """Start `chairlift router` on a free port, in front of servers that are ready."""
    named = [word for replica in replicas for word in ("--replica", replica.url)]
    with running_server(
        [sys.executable, "-m", "chairlift", "router", "--port", "0", *named, *options], environ
    ) as router:
        yield router.wait_until_ready()
