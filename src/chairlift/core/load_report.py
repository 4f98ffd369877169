"""LoadReport, ReplicaReport and LoadSummary: the state and load of one replica, for health checks and routing."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReport(LoadReport):
    """What /load says: the load of a replica's engine and admission queue, and what the replica is.

    Attributes:
        admission_waiting_requests: admitted requests without a first token.
        admission_waiting_tokens: their prompt tokens.
        expected_wait_seconds: expected wait of a request that arrives now.
        instance_id: another one after each start of the server and of its engine, which empties the prefix cache.
        fingerprint: equal on replicas that give the same tokens for the same request; "" until the model is loaded.
        version: Chairlift's version.
        models: names under which the model is served.
        aliases: further names that requests may use for it: the path or id that it was started with.
        adapters: names of the loaded adapters.
        block_size: tokens in a block of the KV cache.
        max_running_requests: requests that run at once at most; 0 while unknown.
        prefill_tokens_per_second: speed at which recent steps have computed prompts; 0 before the first.
        output_tokens_per_second: output tokens of all requests together, recently.
        cpu_ratio: share of its CPUs that the replica uses, 0 to 1; None if it cannot be measured, like all below.
        memory_ratio: share of the host's memory, or of its own limit, that the replica uses.
        gpu_ratio: share of the time in which its GPUs compute.
        gpu_memory_ratio: share of the memory of its fullest GPU that is in use.
    """

    admission_waiting_requests: int = 0
    admission_waiting_tokens: int = 0
    expected_wait_seconds: float = 0.0
    instance_id: str = ""
    fingerprint: str = ""
    version: str = ""
    models: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    block_size: int = 0
    max_running_requests: int = 0
    prefill_tokens_per_second: float = 0.0
    output_tokens_per_second: float = 0.0
    cpu_ratio: float | None = None
    memory_ratio: float | None = None
    gpu_ratio: float | None = None
    gpu_memory_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSummary:
    """The load of a replica in one header line, which every response to a router has.

    The line has `name=value` pairs, separated by semicolons, without spaces, in this order:
    `state=ready;running=3;waiting=0;waiting_tokens=0;wait_ms=0;kv=0.125;instance=9f0c;fingerprint=ab12`

    Attributes:
        state: the replica's state.
        running_requests: requests with a first token.
        waiting_requests: admitted requests without one.
        waiting_tokens: prompt tokens of the waiting requests.
        expected_wait_ms: expected wait of a request that arrives now.
        kv_use: share of the KV cache's blocks that requests hold, 0 to 1.
        instance_id: as of ReplicaReport.
        fingerprint: as of ReplicaReport.
    """

    state: ReplicaState
    running_requests: int = 0
    waiting_requests: int = 0
    waiting_tokens: int = 0
    expected_wait_ms: int = 0
    kv_use: float = 0.0
    instance_id: str = ""
    fingerprint: str = ""

    def header_value(self) -> bytes:
        """Return the line."""
        return (
            f"state={self.state};running={self.running_requests};waiting={self.waiting_requests};"
            f"waiting_tokens={self.waiting_tokens};wait_ms={self.expected_wait_ms};kv={self.kv_use:.3f};"
            f"instance={self.instance_id};fingerprint={self.fingerprint}"
        ).encode()
