"""LoadReport: the state and load of one replica, for health checks and routing."""

from dataclasses import dataclass
from enum import StrEnum


class ReplicaState(StrEnum):
    """The lifecycle state of a replica."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """A load snapshot of one engine; counters are since its start."""

    state: ReplicaState
    waiting_requests: int = 0
    waiting_tokens: int = 0  # prompt tokens of waiting requests
    running_requests: int = 0
    total_blocks: int = 0
    free_blocks: int = 0  # blocks that no request holds, cached ones included
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    finished_requests: int = 0
    preemptions: int = 0
    step_age_seconds: float = 0.0  # seconds that the step in progress has taken so far
