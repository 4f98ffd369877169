"""Harm: what is done to the server on purpose, when, and until when it may show."""

import asyncio
import os
import signal
import time
from dataclasses import dataclass
from enum import StrEnum

from soak.sampling import fetch
from soak.server_fixture import Place

MARGIN = 2.0
"""Seconds behind a fault in which what it did may still arrive."""

BACK_SECONDS = 60.0


class Fault(StrEnum):
    """What is done."""

    KILL = "kill -9 of the engine"
    STOP = "SIGSTOP of the engine"
    BROKEN_KEYS = "SIGHUP with a broken key file"
    GOOD_KEYS = "SIGHUP with a good key file"


FATAL = frozenset({Fault.KILL, Fault.STOP})

PLAN: tuple[tuple[float, Fault], ...] = (
    (0.04, Fault.BROKEN_KEYS), (0.08, Fault.KILL), (0.12, Fault.GOOD_KEYS), (0.17, Fault.STOP), (0.25, Fault.KILL),
    (0.35, Fault.BROKEN_KEYS), (0.45, Fault.GOOD_KEYS), (0.55, Fault.BROKEN_KEYS), (0.65, Fault.GOOD_KEYS),
    (0.75, Fault.BROKEN_KEYS), (0.85, Fault.GOOD_KEYS),
)  # fmt: skip
"""At which share of the time. Engines die in the first third alone, so that the memory of the last can be judged."""


@dataclass(frozen=True, slots=True)
class Done:
    """A fault, in seconds of the monotonic clock; `until` is None where the server did not come back."""

    harm: Fault
    began: float
    until: float | None


async def do(harm: Fault, place: Place, key: str) -> Done:
    """Do harm, and wait until the server serves again."""
    began, pid = time.monotonic(), place.engine_pid
    if harm not in FATAL:
        place.write_keys(broken=harm is Fault.BROKEN_KEYS)
        place.signal(signal.SIGHUP)
        return Done(harm, began, began)
    if pid is None:
        return Done(harm, began, None)
    os.kill(pid, signal.SIGKILL if harm is Fault.KILL else signal.SIGSTOP)
    while time.monotonic() < began + BACK_SECONDS:
        await asyncio.sleep(0.1)
        if place.engine_pid not in (None, pid) and await fetch(place.port, "/readyz", key):
            return Done(harm, began, time.monotonic() + MARGIN)
    return Done(harm, began, None)
