"""Gauges: what processes and the server say of themselves at one moment."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soak.raw_client import End, ask, request
from soak.server_fixture import ADMIN_KEY, Place

MEMORY = {"Rss": "rss", "Pss": "pss", "Private_Clean": "clean", "Private_Dirty": "dirty"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process: bytes of memory (resident; its share of it; what is its own), descriptors, threads."""

    pid: int
    rss: int
    pss: int
    uss: int
    descriptors: int
    threads: int
    shared_files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One moment.

    Attributes:
        at: seconds since the soak began.
        api: the process that speaks HTTP.
        engine: None while there is none.
        files: temporary ones of both.
        children: of the first process.
        metrics: name -> value, all labels together; empty where nobody answered.
        used_blocks: of the KV cache.
    """

    at: float
    api: Process | None
    engine: Process | None
    files: int
    children: int
    metrics: Mapping[str, float]
    used_blocks: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleSample:
    """The server when nobody asks anything of it.

    Attributes:
        sample: what there is then.
        has_rested: whether everything came back in time: no rider, no block.
        riders: who rides or waits all the same.
        used_blocks: that somebody holds.
        faults: of the ledger.
        is_same: whether the reference request was answered as at the start.
    """

    sample: Sample
    has_rested: bool
    riders: int
    used_blocks: int
    faults: tuple[str, ...]
    is_same: bool


def process(pid: int | None) -> Process | None:
    """Look at a process; None where there is none."""
    if pid is None:
        return None
    try:
        place = Path(f"/proc/{pid}")
        memory = dict.fromkeys(MEMORY.values(), 0)
        for line in (place / "smaps_rollup").read_text(encoding="utf-8").splitlines()[1:]:
            name, _, rest = line.partition(":")
            if name in MEMORY:
                memory[MEMORY[name]] = int(rest.split()[0]) * 1024
        return Process(
            pid=pid, rss=memory["rss"], pss=memory["pss"], uss=memory["clean"] + memory["dirty"],
            descriptors=len(list((place / "fd").iterdir())), threads=len(list((place / "task").iterdir())),
            shared_files=len(set(re.findall(r"/dev/shm/\S+", (place / "maps").read_text(encoding="utf-8")))),
        )  # fmt: skip
    except (OSError, ValueError):
        return None


async def metrics(port: int, key: str) -> tuple[dict[str, float], float]:
    """Scrape /metrics: name -> value, all labels together, and the blocks in use; nothing where nobody answers."""
    page = await fetch(port, "/metrics", key)
    found: dict[str, float] = {}
    used = 0.0
    for line in page.decode(errors="replace").splitlines():
        series, _, value = line.rpartition(" ")
        name = series.partition("{")[0]
        if not name.startswith("chairlift_") or name.endswith(("_bucket", "_sum")):
            continue
        found[name.removeprefix("chairlift_")] = found.get(name.removeprefix("chairlift_"), 0.0) + float(value)
        if series == 'chairlift_kv_blocks{state="used"}':
            used = float(value)
    return found, used


async def fetch(port: int, path: str, key: str) -> bytes:
    """Return the body of a GET; nothing where it is not answered with 200."""
    ending = await ask(port, request("GET", path, authorization=f"Bearer {key}"), patience=30.0, keep=2**20)
    return ending.body if ending.end is End.ANSWERED and ending.status == 200 else b""


async def state(port: int) -> dict[str, Any]:
    """Return the dumps of scheduler and cache; nothing where nobody answers."""
    body = await fetch(port, "/admin/state", ADMIN_KEY)
    found: dict[str, Any] = json.loads(body) if body else {}
    return found


async def sample(place: Place, at: float, key: str) -> Sample:
    """Look at everything once."""
    numbers, used = await metrics(place.port, key)
    return Sample(
        at=at, api=process(place.process.pid), engine=process(place.engine_pid),
        files=sum(1 for _ in place.temporary.rglob("*")), children=len(place.children()), metrics=numbers,
        used_blocks=used,
    )  # fmt: skip
