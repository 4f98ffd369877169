"""DriverProcess: starts the driver process, sends it one call at a time, and replaces one that hangs or ends."""

import asyncio
import json
import os
import secrets
import socket
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from chairlift.cluster.ray.config import RayConfig
from chairlift.core.cluster_errors import ClusterFailed

COMMAND = (sys.executable, "-m", "chairlift.cluster.ray.driver_main")

MAX_LINE = 2**26
"""Bytes of an answer: a snapshot of a thousand nodes has a few megabytes."""

EXIT_SECONDS = 6.0
"""Time for the process to end by itself when the controller closes; it waits for Ray a little less."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the driver process."""

    id: int
    result: Any = None
    error: str = ""
    is_timeout: bool = False


class DriverProcess:
    """The connection to Ray, in a process that is started with the first call and after each failure."""

    def __init__(self, config: RayConfig, *, command: Sequence[str] = COMMAND) -> None:
        self._config, self._command = config, tuple(command)
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._last_id = 0
        self._token = secrets.token_hex(16)
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
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE, limit=MAX_LINE, start_new_session=True,  # Ctrl-C is for the controller
            )  # fmt: skip
        except OSError as error:
            raise ClusterFailed(f"the process that connects to Ray cannot be started: {error}") from None
        self._log.clear()
        self._log_task = asyncio.create_task(self._read_log(self._process))
        config = self._config
        arguments = {
            "address": config.address, "namespace": config.namespace, "fleet": config.fleet, "token": self._token,
            "description": f"process {os.getpid()} of {socket.gethostname()}",
        }  # fmt: skip
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
        except ValueError:  # the answer is too long
            await self._kill()
            raise ClusterFailed(f"{where} answers the call {name!r} with more than {MAX_LINE} bytes") from None
        except OSError:
            line = b""
        if not line:
            await self._kill()
            last = self._log[-1] if self._log else "it left no message"
            raise ClusterFailed(f"{where} is gone: the process that was connected to it has ended: {last}")
        try:
            answer = msgspec.convert(json.loads(line), Answer)
            if answer.id != self._last_id:
                raise ValueError(f"it answers call {answer.id}, not {self._last_id}")
        except ValueError as error:  # also those of json and msgspec
            await self._kill()
            raise ClusterFailed(f"{where} answers the call {name!r} with nonsense: {error}") from None
        if not answer.error:
            return answer.result
        if not answer.is_timeout or is_connect:
            await self._kill()
        action = "cannot be reached" if is_connect else f"failed in the call {name!r}"
        raise ClusterFailed(f"{where} {action}: {answer.error}")

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await self._end(process)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        assert process.stdout is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                while await process.stdout.read(MAX_LINE):  # asyncio reports no end while there is unread output
                    pass
        await process.wait()
        if self._log_task is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._log_task, 1)
            self._log_task = None

    async def _read_log(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while line := await _read_line(process.stderr):
            text = line.decode(errors="replace").strip()
            if text:
                self._log.append(text[:300])


async def _read_line(stream: asyncio.StreamReader) -> bytes:
    """Return the next line, b"" at the end; an overlong one is an empty line, so that its process is not blocked."""
    try:
        return await stream.readline()
    except ValueError:
        return b"\n"
