"""ServerSample: memory, descriptors and metrics of a server and its engine at one moment."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soak.raw_client import Outcome, build_request, send_request
from soak.soak_server import ADMIN_KEY, SoakServer

PREFIX = "chairlift_"
MEMORY_FIELDS = {"Rss": "rss", "Pss": "pss", "Private_Clean": "clean", "Private_Dirty": "dirty"}
"""Field of /proc/PID/smaps_rollup -> name here."""

FETCH_TIMEOUT_SECONDS = 30.0
FETCH_MAX_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSample:
    """One process at one moment.

    Attributes:
        pid: process id.
        rss: bytes of resident memory.
        pss: bytes of resident memory, with each shared page divided by the number of its processes.
        uss: bytes of resident memory that no other process shares.
        descriptors: number of open file descriptors.
        threads: number of threads.
        shared_files: number of mapped files in /dev/shm.
    """

    pid: int
    rss: int
    pss: int
    uss: int
    descriptors: int
    threads: int
    shared_files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSample:
    """The server at one moment.

    Attributes:
        at: seconds since the start of the soak test.
        api: the API server's process.
        engine: the engine's process; None while there is none.
        temp_files: number of temporary files of both processes.
        children: number of children of the API server's process.
        metrics: name without the prefix -> value, summed over all labels; empty if the server did not respond.
        used_blocks: number of KV cache blocks in use.
    """

    at: float
    api: ProcessSample | None
    engine: ProcessSample | None
    temp_files: int
    children: int
    metrics: Mapping[str, float]
    used_blocks: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleSample:
    """The server after all requests ended.

    Attributes:
        sample: the server's processes and metrics.
        is_idle: whether all requests ended and all blocks were freed in time.
        num_requests: number of requests that still run or wait.
        used_blocks: number of blocks that a request still holds.
        integrity_errors: errors of the engine's integrity check.
        reference_matches: whether the reference request got the same response as at the start.
    """

    sample: ServerSample
    is_idle: bool
    num_requests: int
    used_blocks: int
    integrity_errors: tuple[str, ...]
    reference_matches: bool


def read_process(pid: int | None) -> ProcessSample | None:
    """Read a process's numbers from /proc; None if there is no such process."""
    if pid is None:
        return None
    try:
        folder = Path(f"/proc/{pid}")
        memory = dict.fromkeys(MEMORY_FIELDS.values(), 0)
        for line in (folder / "smaps_rollup").read_text(encoding="utf-8").splitlines()[1:]:
            name, _, rest = line.partition(":")
            if name in MEMORY_FIELDS:
                memory[MEMORY_FIELDS[name]] = int(rest.split()[0]) * 1024
        return ProcessSample(
            pid=pid, rss=memory["rss"], pss=memory["pss"], uss=memory["clean"] + memory["dirty"],
            descriptors=len(list((folder / "fd").iterdir())), threads=len(list((folder / "task").iterdir())),
            shared_files=len(set(re.findall(r"/dev/shm/\S+", (folder / "maps").read_text(encoding="utf-8")))),
        )  # fmt: skip
    except (OSError, ValueError):
        return None


async def scrape_metrics(port: int, key: str) -> tuple[dict[str, float], float]:
    """Return /metrics as name -> value, summed over all labels, and the blocks in use; empty without a response."""
    page = await fetch_body(port, "/metrics", key)
    metrics: dict[str, float] = {}
    used_blocks = 0.0
    for line in page.decode(errors="replace").splitlines():
        series, _, value = line.rpartition(" ")
        name = series.partition("{")[0]
        if not name.startswith(PREFIX) or name.endswith(("_bucket", "_sum")):
            continue
        metrics[name.removeprefix(PREFIX)] = metrics.get(name.removeprefix(PREFIX), 0.0) + float(value)
        if series == PREFIX + 'kv_cache_blocks{state="used"}':
            used_blocks = float(value)
    return metrics, used_blocks


async def fetch_body(port: int, path: str, key: str) -> bytes:
    """Return the body of a response to a GET; empty if the status is not 200 or no response came."""
    result = await send_request(
        port, build_request("GET", path, authorization=f"Bearer {key}"), timeout_seconds=FETCH_TIMEOUT_SECONDS,
        keep_bytes=FETCH_MAX_BYTES,
    )  # fmt: skip
    return result.body if result.outcome is Outcome.RESPONSE and result.status == 200 else b""


async def fetch_state(port: int) -> dict[str, Any]:
    """Return the state of the scheduler and the cache; empty if the server or its engine did not respond."""
    body = await fetch_body(port, "/admin/state", ADMIN_KEY)
    state: dict[str, Any] = json.loads(body) if body else {}
    return {} if "error" in state else state


async def take_sample(server: SoakServer, at: float, key: str) -> ServerSample:
    """Sample the server's processes, files and metrics once."""
    metrics, used_blocks = await scrape_metrics(server.process.port, key)
    return ServerSample(
        at=at, api=read_process(server.process.pid), engine=read_process(server.process.engine_pid),
        temp_files=sum(1 for _ in server.temp_folder.rglob("*")), children=len(server.process.child_pids()),
        metrics=metrics, used_blocks=used_blocks,
    )  # fmt: skip
