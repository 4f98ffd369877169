"""ReplicaSample and PoolSample: what the autoscaler knows about a pool of replicas at one moment.

A number that is missing is None: it is not zero. Counts are of all clients.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from chairlift.core.load_report import ReplicaState

SHOWN_STATES = (ReplicaState.READY, ReplicaState.STARTING, ReplicaState.DRAINING)
"""States of replicas that logs and metrics count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSample:
    """One replica at one moment.

    Attributes:
        replica_id: the cluster's name of the replica, unique in the pool.
        state: STARTING until it serves, READY, DRAINING once it gets no new requests; DEAD and STOPPED do not count.
        age_seconds: seconds since its start was asked for.
        version: version of its settings; replicas of an older version are replaced first.
        replica_type: type of its machine, which has a price.
        can_return: whether it drains and can be taken back, so that the pool grows without a start.
        waiting_requests: requests without a first token; None if the replica does not report it, like all below.
        waiting_tokens: prompt tokens of these requests.
        running_requests: requests with a first token.
        expected_wait_seconds: expected wait of a request that arrives now.
        kv_usage_ratio: share of the KV cache that requests hold, 0 to 1.
        prefill_tokens_per_second: measured speed of prompt processing.
        output_tokens_per_second: output tokens of all its requests together, recently.
        max_running_requests: requests that run at once at most.
        cpu_ratio: share of its CPUs that it uses, 0 to 1.
        memory_ratio: share of its memory that it uses, 0 to 1.
        gpu_ratio: share of its GPUs' time that it uses, 0 to 1.
        gpu_memory_ratio: share of the memory of its fullest GPU that is in use, 0 to 1.
    """

    replica_id: str
    state: ReplicaState
    age_seconds: float = 0.0
    version: str = ""
    replica_type: str = ""
    can_return: bool = False
    waiting_requests: float | None = None
    waiting_tokens: float | None = None
    running_requests: float | None = None
    expected_wait_seconds: float | None = None
    kv_usage_ratio: float | None = None
    prefill_tokens_per_second: float | None = None
    output_tokens_per_second: float | None = None
    max_running_requests: float | None = None
    cpu_ratio: float | None = None
    memory_ratio: float | None = None
    gpu_ratio: float | None = None
    gpu_memory_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSample:
    """A pool of replicas at one moment.

    Attributes:
        at_seconds: monotonic time of the sample.
        wall_seconds: seconds since 1970 UTC, for schedules.
        replicas: every replica that the cluster has, also those that start or drain.
        held_requests: requests that wait at the router because no replica serves; None if unknown, like all below.
        held_tokens: their prompt tokens.
        requests_per_second: rate of arriving requests.
        ttft_seconds: quantile of the time to the first token of recent requests, the one that the SLO names.
        itl_seconds: quantile of the inter-token latency of recent requests.
        external: values of further metrics by name, for example of Prometheus queries; the value is None where the
            query failed or found nothing.
    """

    at_seconds: float
    wall_seconds: float = 0.0
    replicas: tuple[ReplicaSample, ...] = ()
    held_requests: float | None = None
    held_tokens: float | None = None
    requests_per_second: float | None = None
    ttft_seconds: float | None = None
    itl_seconds: float | None = None
    external: Mapping[str, float | None] = field(default_factory=dict)

    def num_in_state(self, *states: ReplicaState) -> int:
        """Return how many replicas are in one of these states."""
        return sum(replica.state in states for replica in self.replicas)
