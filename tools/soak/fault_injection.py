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


class Harm(StrEnum):
    """What is done."""

    KILL = "kill -9 of the engine"
    STOP = "SIGSTOP of the engine"
    BROKEN_KEYS = "SIGHUP with a broken key file"
    GOOD_KEYS = "SIGHUP with a good key file"


FATAL = frozenset({Harm.KILL, Harm.STOP})

PLAN: tuple[tuple[float, Harm], ...] = (
    (0.04, Harm.BROKEN_KEYS), (0.08, Harm.KILL), (0.12, Harm.GOOD_KEYS), (0.17, Harm.STOP), (0.25, Harm.KILL),
    (0.35, Harm.BROKEN_KEYS), (0.45, Harm.GOOD_KEYS), (0.55, Harm.BROKEN_KEYS), (0.65, Harm.GOOD_KEYS),
    (0.75, Harm.BROKEN_KEYS), (0.85, Harm.GOOD_KEYS),
)  # fmt: skip
"""At which share of the time. Engines die in the first third alone, so that the memory of the last can be judged."""


@dataclass(frozen=True, slots=True)
class Done:
    """A fault, in seconds of the monotonic clock; `until` is None where the server did not come back."""

    harm: Harm
    began: float
    until: float | None


async def do(harm: Harm, place: Place, key: str) -> Done:
    """Do harm, and wait until the server serves again."""
    began, pid = time.monotonic(), place.engine_pid
    if harm not in FATAL:
        place.write_keys(broken=harm is Harm.BROKEN_KEYS)
        place.signal(signal.SIGHUP)
        return Done(harm, began, began)
    if pid is None:
        return Done(harm, began, None)
    os.kill(pid, signal.SIGKILL if harm is Harm.KILL else signal.SIGSTOP)
    while time.monotonic() < began + BACK_SECONDS:
        await asyncio.sleep(0.1)
        if place.engine_pid not in (None, pid) and await fetch(place.port, "/readyz", key):
            return Done(harm, began, time.monotonic() + MARGIN)
    return Done(harm, began, None)
