"""RayConfig: where Ray is, and how the replicas of a fleet run there; require_ray()."""

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chairlift.core.errors import ConfigError

_FLEET = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class RayConfig:
    """The Ray cluster and what all replicas of a fleet have in common. Raises ConfigError for an invalid field.

    Attributes:
        fleet: name of the fleet; several fleets of one namespace do not see each other.
        address: "auto" for the Ray of this machine, "host:port" of the head, or "ray://host:port" for Ray's client.
        namespace: Ray's namespace of the actors and placement groups.
        host: address that the replicas listen on; "" for the address of the node that each runs on.
        command: program of a replica, which gets `serve` and its options; () for the node's own Chairlift.
        runtime_env: Ray's runtime environment of the actors, for nodes that do not have Chairlift.
        type_resources: Ray's resources that a replica of a type needs besides CPUs and GPUs, by replica type.
        stop_timeout_seconds: a replica that drains longer than this is killed; more than its own drain_timeout.
        connect_timeout_seconds: time to connect to Ray.
        call_timeout_seconds: time of each later call.
    """

    fleet: str = "default"
    address: str = "auto"
    namespace: str = "chairlift"
    host: str = ""
    command: tuple[str, ...] = ()
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    type_resources: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    stop_timeout_seconds: float = 40.0
    connect_timeout_seconds: float = 30.0
    call_timeout_seconds: float = 15.0

    def __post_init__(self) -> None:
        if not _FLEET.fullmatch(self.fleet):
            raise ConfigError(
                f"the fleet's name {self.fleet!r} is not valid: up to 40 characters a to z, 0 to 9 and hyphens, the "
                "first and the last of them no hyphen", option="fleet",
            )  # fmt: skip
        if not self.address:
            raise ConfigError('give Ray\'s address: "auto", host:port or ray://host:port', option="address")
        for name in ("stop_timeout_seconds", "connect_timeout_seconds", "call_timeout_seconds"):
            value = getattr(self, name)
            if not value > 0:
                raise ConfigError(f"{name} is {value}, and must be above 0", option=name)


def require_ray() -> None:
    """Raise ConfigError if ray is not installed; does not import it, which takes most of a second."""
    try:
        is_found = importlib.util.find_spec("ray") is not None
    except (ImportError, ValueError):  # blocked, or half loaded
        is_found = False
    if not is_found:
        raise ConfigError('a fleet on Ray needs ray: pip install "chairlift[ray]"', option="cluster")
