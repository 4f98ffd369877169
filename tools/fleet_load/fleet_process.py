"""Runs `chairlift fleet` and watches it through its admin route."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp

from server_process.server_process import ServerProcess

ADMIN_KEY = "fleet-load-admin"
HEADERS = {"authorization": f"Bearer {ADMIN_KEY}"}
START_SECONDS = 600.0
STOP_SECONDS = 120.0


class FleetProcess:
    """One fleet with the demo model, whose log is a file."""

    def __init__(self, folder: Path, words: Sequence[str]) -> None:
        self._folder, self._words = folder, words
        self.url = ""

    async def start(self) -> None:
        """Start it, and wait until it is ready."""
        self._folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "chairlift", "fleet", "--port", "0", "--state-dir",
                   str(self._folder / "state"), *self._words]  # fmt: skip
        self._server = ServerProcess(
            command, self._folder / "fleet.log", environ={"CHAIRLIFT_ADMIN_KEY": ADMIN_KEY},
            start_seconds=START_SECONDS,
        )  # fmt: skip
        await self._server.ready()
        self.url = self._server.url

    async def status(self, session: aiohttp.ClientSession) -> Any:
        """Return what /admin/fleet says."""
        async with session.get(f"{self.url}/admin/fleet", headers=HEADERS) as response:
            return await response.json()

    def kill_replica(self, index: int) -> int | None:
        """Kill one of the replicas that run; returns its process id, None where none runs."""
        pids = []
        for file in sorted((self._folder / "state" / "replicas").glob("*/pid")):
            pid = int(file.read_text())
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if b"serve" in command:
                pids.append(pid)
        if not pids:
            return None
        os.kill(pids[index % len(pids)], signal.SIGKILL)
        return pids[index % len(pids)]

    async def stop(self) -> float:
        """Stop it; returns the seconds that this took."""
        started_at = time.monotonic()
        await asyncio.to_thread(self._server.stop, STOP_SECONDS)
        return time.monotonic() - started_at
