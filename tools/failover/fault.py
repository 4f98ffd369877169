"""Fault: the ways in which a round loses a replica, each with the steps before, at and after the loss."""

import signal
from enum import StrEnum

from failover.fleet import Fleet

CUT_BYTES = 37
"""Bytes that a cut connection still passes on, so that it ends within an event."""


class Fault(StrEnum):
    """How a replica is lost while it streams."""

    KILL = "kill -9"
    STOP = "SIGSTOP"
    STALL = "half-open connection"  # both ends think that it is open
    CUT = "cut connection"
    RESET = "reset connection"
    TERM = "SIGTERM"
    DRAIN = "drain by the router"


PROXY_FAULTS = frozenset({Fault.STALL, Fault.CUT, Fault.RESET})


def router_of(fault: Fault) -> int:
    """Return the router that a round uses: faults of connections need the one behind the proxies."""
    return int(fault in PROXY_FAULTS)


def hold(fleet: Fleet, victim: int, fault: Fault) -> None:
    """Keep a replica from answering, so that it is lost before its first token."""
    if fault in PROXY_FAULTS:
        fleet.proxies[victim].stall()
    elif fault is not Fault.DRAIN:
        fleet.replicas[victim].send_signal(signal.SIGSTOP)


async def inject(fleet: Fleet, victim: int, fault: Fault, *, is_held: bool) -> None:
    """Lose a replica, which may be held."""
    proxy, replica = fleet.proxies[victim], fleet.replicas[victim]
    match fault:
        case Fault.KILL:
            replica.send_signal(signal.SIGKILL)
        case Fault.STOP:
            replica.send_signal(signal.SIGSTOP)
        case Fault.STALL:
            proxy.stall()
        case Fault.CUT:
            proxy.cut_after(CUT_BYTES)
        case Fault.RESET:
            proxy.reset()
        case Fault.TERM:
            replica.send_signal(signal.SIGTERM)
        case Fault.DRAIN:
            router = router_of(fault)
            body = {"replica_id": fleet.replica_ids(router)[victim]}
            await fleet.post(router, "/admin/replicas/drain", body)
    if is_held and fault in {Fault.CUT, Fault.RESET}:
        proxy.resume()
    if is_held and fault is Fault.TERM:
        replica.send_signal(signal.SIGCONT)


async def recover(fleet: Fleet, victim: int, fault: Fault) -> None:
    """Bring the replica back, and wait until both routers use it."""
    fleet.proxies[victim].resume()
    if fault is Fault.STOP:
        fleet.replicas[victim].send_signal(signal.SIGCONT)
    if fault is Fault.DRAIN:
        router = router_of(fault)
        await fleet.post(router, "/admin/replicas/undrain", {"replica_id": fleet.replica_ids(router)[victim]})
    if fault in {Fault.KILL, Fault.TERM}:
        await fleet.restart(victim)
    await fleet.wait_until_healthy()
