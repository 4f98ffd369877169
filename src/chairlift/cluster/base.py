"""Cluster: the interface of everything that starts and stops replicas.

    controller ── scale(spec, 3, remove=("r-2",)) ──► cluster ──► processes, actors, pods
               ◄── list(): id, URL, state, age, version ──┘

A cluster holds no decision. What it has survives the process that asked for it: `list` of a new object, after a crash,
names everything that runs.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol, runtime_checkable

from chairlift.cluster.cluster_replica import ClusterReplica
from chairlift.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSpec:
    """What a replica is: a `chairlift serve` with its options, and what it needs.

    Attributes:
        model: folder or name of the model; "" for the embedded demo model.
        arguments: further options of `chairlift serve`, without host and port.
        environ: environment variables of the replica, added to those of the cluster.
        num_cpus: CPUs of a replica; 0 for all of its machine.
        num_gpus: GPUs of a replica.
        replica_type: type of its machine, which has a price; "" where there is one type.
    """

    model: str = ""
    arguments: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    num_cpus: int = 0
    num_gpus: int = 0
    replica_type: str = ""

    def __post_init__(self) -> None:
        """Raise ConfigError for numbers below 0."""
        for name in ("num_cpus", "num_gpus"):
            if getattr(self, name) < 0:
                raise ConfigError(
                    f"{name} of a replica must be at least 0, got {getattr(self, name)}",
                    option=name.replace("num", "replica"),
                )

    @property
    def version(self) -> str:
        """Short digest of all fields: replicas of another version are replaced by an update."""
        content = json.dumps(asdict(self) | {"environ": dict(self.environ)}, sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:12]


class Cluster(Protocol):
    """Starts and stops replicas. All methods may be called again after any failure, and after a crash in any of them.

    All but `close` raise ClusterFailed when the cluster cannot be reached or does not do it, and ClusterDenied when it
    may not.
    """

    async def list(self) -> Sequence[ClusterReplica]:
        """Return all replicas, also those that start, stop or failed a short time ago."""
        ...

    async def start(self, spec: ReplicaSpec, count: int = 1) -> None:
        """Ask for `count` more replicas; returns when the cluster has noted it, before they serve."""
        ...

    async def stop(self, replica_ids: Sequence[str]) -> None:
        """Stop these replicas and start no others for them. They are drained before; unknown ones are ignored.

        Returns when the cluster has noted it; `list` names them as STOPPING until they are gone.
        """
        ...

    async def scale(self, spec: ReplicaSpec, target: int, *, remove: Sequence[str] = ()) -> None:
        """Have `target` replicas, pending and running ones: start the missing ones, or stop the surplus.

        Those of `remove` go first, then pending ones, then the youngest. Calling it twice starts nothing twice.
        """
        ...

    async def release_failed(self) -> None:
        """Let `start` and `scale` try again at once what failed too often; does nothing where none is held back."""
        ...

    async def close(self) -> None:
        """Close the connections; replicas run on."""
        ...


@runtime_checkable
class RemovalOrder(Protocol):
    """What a cluster has in addition when it cannot remove every replica it is asked to. Optional."""

    async def removable(self, replica_ids: Sequence[str]) -> Sequence[str]:
        """Return the replicas that go when as many are removed and these are preferred, before any is drained.

        There are fewer, or none, when the cluster cannot remove as many now. Raises ClusterFailed and ClusterDenied.
        """
        ...
