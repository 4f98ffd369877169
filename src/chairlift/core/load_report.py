"""LoadReport: what a replica says of itself, to whoever asks or routes."""

from dataclasses import dataclass
from enum import StrEnum


class ReplicaState(StrEnum):
    """Where a replica is in its life."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """A snapshot of one engine; counts are since its start."""

    state: ReplicaState
    waiting_requests: int = 0
    waiting_tokens: int = 0  # prompt tokens in line
    running_requests: int = 0
    total_blocks: int = 0
    free_blocks: int = 0  # blocks nobody holds, cached contents included
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    finished_requests: int = 0
    preemptions: int = 0
    step_age_seconds: float = 0.0  # seconds that the step in progress has taken so far
