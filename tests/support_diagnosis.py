"""Live servers for tests of the diagnosis: snapshots of texts, and real replicas and routers in this process."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from chairlift.cli.diagnosis.diagnosis import Diagnosis, diagnose
from chairlift.cli.diagnosis.server_reader import PARTS, Keys, ServerReader
from chairlift.cli.diagnosis.server_snapshot import Part, ServerSnapshot
from chairlift.llm.text_service import TextService
from chairlift.server.app import server_app
from chairlift.server.replica import Replica
from chairlift.web.auth.api_keys import read_keys
from chairlift.web.auth.credentials import Credentials
from support_config import make_server_config
from support_router import serving
from support_server import MODEL

USER_KEY, ADMIN_KEY = "user-secret-0123", "admin-secret-4567"
KEYS = read_keys(None, {"CHAIRLIFT_API_KEY": USER_KEY, "CHAIRLIFT_ADMIN_KEY": ADMIN_KEY})
VALID = Keys(api=USER_KEY, admin=ADMIN_KEY)
INTERVAL = 0.05


def snapshot(
    metrics: str = "", debug: Mapping[str, Any] | None = None, load: Mapping[str, Any] | None = None, at: float = 0.0,
    **parts: Part,
) -> ServerSnapshot:  # fmt: skip
    """Return a snapshot of a healthy server with these metrics (without their prefix), report and load."""
    bodies = {
        "version": '{"version": "1"}', "debug": json.dumps(debug or {}),
        "load": json.dumps(load or {"state": "ready"}), "metrics": page(metrics),
    }  # fmt: skip
    healthy = {name: Part(path=path, status=200, body=bodies.get(name, "{}").encode()) for name, path in PARTS.items()}
    now = time.time()
    return ServerSnapshot(url="http://server", at_seconds=at, wall_from=now, wall_to=now, parts={**healthy, **parts})


def page(metrics: str) -> str:
    """Return a page of metrics; each line has a name without prefix, labels and a value."""
    return "".join(f"chairlift_{line.strip()}\n" for line in metrics.splitlines() if line.strip())


@dataclass(slots=True)
class LiveReplica:
    """A replica that listens on a port of this machine."""

    url: str
    replica: Replica

    async def update_gauges(self) -> None:
        """Do what a server process does every second."""
        await self.replica._update_gauges()


@asynccontextmanager
async def live_replica(service: TextService, **options: Any) -> AsyncIterator[LiveReplica]:
    """Serve a replica with keys over a service."""
    replica = Replica(make_server_config(MODEL, **options))

    async def drain() -> None:
        replica.lifecycle.drain()

    replica.attach_service(service, lambda: None, 2048)
    try:
        async with serving(server_app(replica, Credentials(KEYS), drain).asgi) as url:
            yield LiveReplica(url, replica)
    finally:
        await replica.close()


async def diagnosed(url: str, keys: Keys = VALID, replica_keys: Keys = VALID, seconds: float = 10.0) -> Diagnosis:
    """Diagnose a server of this event loop."""
    return await asyncio.to_thread(diagnose, ServerReader(url, keys, seconds), replica_keys, INTERVAL)


def checks(diagnosis: Diagnosis) -> set[tuple[str, str]]:
    """Return the check and the level of each finding."""
    return {(each.check, each.level) for each in diagnosis.findings}
