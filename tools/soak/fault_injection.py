"""inject_fault: kills or stops the engine or breaks the key file, and waits until the server serves again."""

import asyncio
import os
import signal
import time
from dataclasses import dataclass
from enum import StrEnum

from soak.server_samples import fetch_body
from soak.soak_server import SoakServer

MARGIN_SECONDS = 2.0
"""Time after a recovery in which responses may still show the fault's effect."""

RECOVERY_SECONDS = 60.0
"""Longest time that the server may take to serve again."""


class Fault(StrEnum):
    """A kind of fault."""

    KILL = "kill -9 of the engine"
    STOP = "SIGSTOP of the engine"
    BROKEN_KEYS = "SIGHUP with a broken key file"
    GOOD_KEYS = "SIGHUP with a good key file"


FATAL = frozenset({Fault.KILL, Fault.STOP})
"""Faults that end the engine's process."""

PLAN: tuple[tuple[float, Fault], ...] = (
    (0.04, Fault.BROKEN_KEYS), (0.08, Fault.KILL), (0.12, Fault.GOOD_KEYS), (0.17, Fault.STOP), (0.25, Fault.KILL),
    (0.35, Fault.BROKEN_KEYS), (0.45, Fault.GOOD_KEYS), (0.55, Fault.BROKEN_KEYS), (0.65, Fault.GOOD_KEYS),
    (0.75, Fault.BROKEN_KEYS), (0.85, Fault.GOOD_KEYS),
)  # fmt: skip
"""Faults, each with the share of the test's time after which it is injected.

Engines end only in the first third, so that the last engine runs long enough for its memory to be judged.
"""


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault that was injected; times are seconds of the monotonic clock.

    Attributes:
        fault: its kind.
        started_at: when it was injected.
        effects_until: until when responses may show its effect; None if the server did not recover.
    """

    fault: Fault
    started_at: float
    effects_until: float | None


async def inject_fault(fault: Fault, server: SoakServer, key: str) -> InjectedFault:
    """Inject a fault, and wait until the server serves again."""
    started_at, pid = time.monotonic(), server.process.engine_pid
    if fault not in FATAL:
        server.write_keys(broken=fault is Fault.BROKEN_KEYS)
        server.process.send_signal(signal.SIGHUP)
        return InjectedFault(fault, started_at, started_at)
    if pid is None:
        return InjectedFault(fault, started_at, None)
    os.kill(pid, signal.SIGKILL if fault is Fault.KILL else signal.SIGSTOP)
    while time.monotonic() < started_at + RECOVERY_SECONDS:
        await asyncio.sleep(0.1)
        if server.process.engine_pid not in (None, pid) and await fetch_body(server.process.port, "/readyz", key):
            return InjectedFault(fault, started_at, time.monotonic() + MARGIN_SECONDS)
    return InjectedFault(fault, started_at, None)
