"""DriverProcess: starts the driver process, sends it one call at a time, and replaces one that hangs or ends."""

import asyncio
import json
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from chairlift.cluster.ray.config import RayConfig
from chairlift.core.cluster_errors import ClusterFailed

COMMAND = (sys.executable, "-m", "chairlift.cluster.ray.driver")

MAX_LINE = 2**26
"""Bytes of an answer: a snapshot of a thousand nodes has a few megabytes."""

EXIT_SECONDS = 6.0
"""Time for the process to end by itself when the controller closes; it waits for Ray a little less."""


class DriverProcess:
    """The connection to Ray, in a process that is started with the first call and after each failure."""

    def __init__(self, config: RayConfig, *, command: Sequence[str] = COMMAND) -> None:
        self._config, self._command = config, tuple(command)
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._last_id = 0
        self._log: deque[str] = deque(maxlen=20)
        self._log_task: asyncio.Task[None] | None = None

    async def call(self, name: str, **arguments: Any) -> Any:
        """Make a call and return its result. Raises ClusterFailed, and the next call connects again."""
        async with self._lock:
            try:
                if self._process is None:
                    await self._connect()
                return await self._exchange(name, arguments, self._config.call_timeout_seconds)
            except asyncio.CancelledError:
                await self._kill()  # its answer would be read as that of the next call
                raise

    async def close(self) -> None:
        """Let the process leave Ray and end."""
        async with self._lock:
            process, self._process = self._process, None
            if process is not None:
                assert process.stdin is not None
                process.stdin.close()
                with suppress(TimeoutError):
                    async with asyncio.timeout(EXIT_SECONDS):
                        await process.wait()
                await self._end(process)

    async def _connect(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, limit=MAX_LINE, start_new_session=True,  # Ctrl-C is for the controller
        )  # fmt: skip
        self._log.clear()
        self._log_task = asyncio.create_task(self._read_log(self._process))
        config = self._config
        arguments = {"address": config.address, "namespace": config.namespace, "fleet": config.fleet}
        await self._exchange("connect", arguments, config.connect_timeout_seconds, is_connect=True)

    async def _exchange(
        self, name: str, arguments: dict[str, Any], timeout_seconds: float, *, is_connect: bool = False
    ) -> Any:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        self._last_id += 1
        message = {"id": self._last_id, "call": name, "arguments": arguments}
        where = f"Ray at {self._config.address}"
        try:
            async with asyncio.timeout(timeout_seconds):
                process.stdin.write(json.dumps(message).encode() + b"\n")
                await process.stdin.drain()
                line = await process.stdout.readline()
        except TimeoutError:
            await self._kill()
            action = "cannot be reached" if is_connect else f"does not answer the call {name!r}"
            raise ClusterFailed(f"{where} {action} within {timeout_seconds:g} s") from None
        except OSError:
            line = b""
        if not line:
            await self._kill()
            last = self._log[-1] if self._log else "it left no message"
            raise ClusterFailed(f"{where} is gone: the process that was connected to it has ended: {last}")
        answer = json.loads(line)
        assert answer["id"] == self._last_id, (answer["id"], self._last_id)
        if "error" not in answer:
            return answer["result"]
        if not answer["is_timeout"] or is_connect:
            await self._kill()
        action = "cannot be reached" if is_connect else f"failed in the call {name!r}"
        raise ClusterFailed(f"{where} {action}: {answer['error']}")

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await self._end(process)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        await process.wait()
        if self._log_task is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._log_task, 1)
            self._log_task = None

    async def _read_log(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while line := await process.stderr.readline():
            text = line.decode(errors="replace").strip()
            if text:
                self._log.append(text[:300])
