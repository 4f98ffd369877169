"""Which port, CPUs and GPUs a replica gets, in view of those that run."""

import contextlib
import random
import socket
from collections import Counter
from collections.abc import Collection, Iterable

from chairlift.core.cluster_errors import ClusterFailed

MAX_PORT_TRIES = 100


def choose_port(host: str, ports: tuple[int, int] | None, taken: Collection[int], avoided: Collection[int]) -> int:
    """Return a port on which this process can listen now.

    Args:
        host: address to listen on.
        ports: first and last port; None for any free one.
        taken: ports of replicas that may run.
        avoided: ports of replicas that failed lately, used only when no other is free.

    Raises ClusterFailed when no port is free.
    """
    if ports is None:
        for _ in range(MAX_PORT_TRIES):
            with contextlib.suppress(OSError), _listening_socket(host, 0) as free:
                port: int = free.getsockname()[1]
                if port not in taken:
                    return port
        raise ClusterFailed(f"the system gives no free port of {host}")
    candidates = [port for port in range(ports[0], ports[1] + 1) if port not in taken]
    random.shuffle(candidates)  # so that a port that another program took a moment ago is not tried each time
    for port in sorted(candidates, key=lambda each: each in avoided):
        with contextlib.suppress(OSError), _listening_socket(host, port):
            return port
    raise ClusterFailed(f"no port of {ports[0]} to {ports[1]} is free on {host}; {len(taken)} have replicas")


def choose_cpus(num_cpus: int, usable: Collection[int], taken: Iterable[Collection[int]]) -> tuple[int, ...]:
    """Return the CPUs for a replica: those that the fewest replicas have, then the lowest numbers.

    A replica gets all CPUs of the machine, the empty tuple, for 0.
    """
    if num_cpus == 0:
        return ()
    uses = Counter(cpu for cpus in taken for cpu in cpus)
    return tuple(sorted(sorted(usable, key=lambda cpu: (uses[cpu], cpu))[:num_cpus]))


def describe_cpus(num_cpus: int, chosen: Collection[int], taken: Iterable[Collection[int]]) -> str:
    """Return what people should know about the CPUs of a new replica; "" where there is nothing to say."""
    notes = []
    if len(chosen) < num_cpus:
        notes.append(f"it asks for {num_cpus} CPUs and has all {len(chosen)} usable ones")
    if sharing := sum(not set(chosen).isdisjoint(cpus) for cpus in taken):
        listed = ", ".join(map(str, chosen))
        notes.append(f"it shares the CPUs {listed} with {sharing} other replica{'s' if sharing > 1 else ''}")
    return "; ".join(notes)


def choose_gpus(num_gpus: int, usable: Collection[str], taken: Iterable[Collection[str]]) -> tuple[str, ...]:
    """Return free GPUs for a replica, in the order of `usable`; replicas do not share GPUs, because memory is fixed.

    Raises ClusterFailed when there are not enough.
    """
    used = {gpu for gpus in taken for gpu in gpus}
    free = [gpu for gpu in usable if gpu not in used]
    if len(free) < num_gpus:
        raise ClusterFailed(
            f"a replica needs {num_gpus} GPUs and {len(free)} of {len(usable)} are free; "
            "wait until another replica has stopped, or lower the number of replicas"
        )
    return tuple(free[:num_gpus])


def _listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket bound to a port, as a replica binds it. Raises OSError when that is impossible."""
    server = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port whose connections ended lately is free
        server.bind((host, port))
        server.listen(1)
    except OSError:
        server.close()
        raise
    return server
