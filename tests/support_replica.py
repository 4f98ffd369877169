"""with_replica: runs a test on a replica that serves the fake model."""

import asyncio
from typing import Any

from chairlift.server.replica import Replica
from support_config import make_server_config
from support_server import run
from support_services import fake_service


def with_replica(check: Any, **options: Any) -> None:
    async def scenario() -> None:
        replica = Replica(make_server_config("a", "b", **options))
        service = fake_service()
        replica.attach_service(service, lambda: None, 2048)
        try:
            result = check(replica)
            if asyncio.iscoroutine(result):
                await result
        finally:
            await replica.close()

    run(scenario())
