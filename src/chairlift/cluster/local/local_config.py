"""LocalConfig: what a LocalCluster runs, where it keeps its state, and its limits."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chairlift.core.errors import ConfigError

SERVE_COMMAND = (sys.executable, "-m", "chairlift", "serve")
MAX_PORT = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalConfig:
    """Configuration of a LocalCluster.

    Attributes:
        folder: folder of the fleet's state, on a local file system that is not emptied while the machine runs.
        command: what starts a replica; model, `--host`, `--port` and the spec's arguments are appended. It keeps its
            process id and inherited descriptors: it executes the server and does not start it as a child.
        host: address that replicas listen on.
        ports: first and last port of the replicas; None for free ones that the system chooses.
        cpus: CPUs that are given out; None for those that this process may use.
        gpus: GPUs that are given out, by the names that CUDA_VISIBLE_DEVICES takes.
        environ: environment of the replicas, without the spec's; None for that of this process.
        stop_timeout: seconds between SIGTERM and SIGKILL; more than replicas need to drain.
        first_restart: seconds before the restart after the first failure; they double with each.
        max_restart: longest such delay in seconds.
        reset_seconds: seconds after which a failure counts as the first again.
        max_failures: failures in a row, without ever serving, after which a replica is not restarted.
        ready_path: path that answers 200 once a replica serves.
        max_log_bytes: size at which a replica's log is moved to log.1, which replaces the one before.
        keep_seconds: seconds that the folder of a stopped replica is kept.
        num_failed_kept: failed replicas whose folders are kept, the latest ones.
    """

    folder: Path
    command: tuple[str, ...] = SERVE_COMMAND
    host: str = "127.0.0.1"
    ports: tuple[int, int] | None = None
    cpus: frozenset[int] | None = None
    gpus: tuple[str, ...] = ()
    environ: Mapping[str, str] | None = None
    stop_timeout: float = 60.0
    first_restart: float = 1.0
    max_restart: float = 60.0
    reset_seconds: float = 60.0
    max_failures: int = 5
    ready_path: str = "/readyz"
    max_log_bytes: int = 16 * 2**20
    keep_seconds: float = 600.0
    num_failed_kept: int = 5

    def __post_init__(self) -> None:
        """Raise ConfigError for values that make no sense."""
        if not self.command:
            raise ConfigError("the command of a replica is empty")
        if self.ports is not None and not 1 <= self.ports[0] <= self.ports[1] <= MAX_PORT:
            raise ConfigError(f"ports must be a range between 1 and {MAX_PORT}, got {self.ports[0]} to {self.ports[1]}")
        if self.cpus is not None and not self.cpus:
            raise ConfigError("the set of CPUs is empty")
        if len(set(self.gpus)) != len(self.gpus):
            raise ConfigError(f"a GPU is named twice: {', '.join(self.gpus)}")
        for name in ("stop_timeout", "first_restart", "max_restart", "reset_seconds", "keep_seconds"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ConfigError(f"{name} must be at least 0 seconds, got {value}")
        for name in ("max_failures", "max_log_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.num_failed_kept < 0:
            raise ConfigError(f"num_failed_kept must be at least 0, got {self.num_failed_kept}")
        if not self.ready_path.startswith("/"):
            raise ConfigError(f"ready_path must begin with a slash, got {self.ready_path!r}")
