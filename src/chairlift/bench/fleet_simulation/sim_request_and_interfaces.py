"""SimRequest, ServingModel, RequestSource, ScalingRule: the interfaces between the parts of a simulated fleet."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from chairlift.autoscaler.pool_sample import PoolSample
from chairlift.router.prompt_prefix_and_length import PromptPrefix


@dataclass(slots=True, eq=False)
class SimRequest:
    """One request and what has become of it; seconds are those of the simulation.

    Attributes:
        index: number of the request, unique in a run.
        arrived_at: when the router got it.
        prompt_tokens: length of the prompt.
        output_tokens: length of the output.
        session_key: its session, for policies that use it.
        prompt_token_ids: the prompt; () where only its length counts.
        prefix: the hashes by which the router knows its beginning; None where only its length counts.
        routed_tokens: prompt tokens that the router expects to be computed.
        num_moves: how often it has moved to a replica that became ready.
        first_token_at: when its first token came; None before.
        longest_gap_seconds: longest time between two of its tokens.
        cached_tokens: prompt tokens that its replica had cached.
        output_token_ids: the output, of replicas that compute one.
    """

    index: int
    arrived_at: float
    prompt_tokens: int
    output_tokens: int
    session_key: str = ""
    prompt_token_ids: Sequence[int] = ()
    prefix: PromptPrefix | None = None
    routed_tokens: int = 0
    num_moves: int = 0
    first_token_at: float | None = None
    longest_gap_seconds: float = 0.0
    cached_tokens: int = 0
    output_token_ids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class SimStepOutputs:
    """What became known at the end of a step: the first tokens, and the requests with their last token."""

    first_tokens: list[SimRequest] = field(default_factory=list)
    finished: list[SimRequest] = field(default_factory=list)


class ServingModel(Protocol):
    """The engine of one replica in simulated time.

    Attributes:
        next_event_at: time of the next event, infinity while idle; the caller then calls `advance`.
        busy_seconds: seconds in steps, up to the last event or `update_progress`.
        output_tokens: output tokens until then.
    """

    next_event_at: float
    busy_seconds: float
    output_tokens: int

    @property
    def kv_usage_ratio(self) -> float:
        """Share of the KV cache's blocks that requests hold."""
        ...

    def submit(self, request: SimRequest, now: float) -> None:
        """Queue a request; may move `next_event_at` to an earlier time."""
        ...

    def withdraw(self, request: SimRequest) -> bool:
        """Take back a request without a first token; return False if it has started and stays."""
        ...

    def advance(self) -> SimStepOutputs:
        """Handle the event at `next_event_at`, at which the caller's clock stands."""
        ...

    def update_progress(self, now: float) -> None:
        """Bring the counts up to `now`, which is not after the next event; changes no event."""
        ...


class RequestSource(Protocol):
    """The clients of a fleet."""

    @property
    def next_at(self) -> float:
        """Time of the next request; infinity if none will come before another request has ended."""
        ...

    def take(self) -> SimRequest:
        """Return the request of `next_at`."""
        ...

    def record_end(self, request: SimRequest, now: float) -> None:
        """Learn that a request has its last token."""
        ...


@dataclass(frozen=True, slots=True)
class ScalingTarget:
    """How many starting and ready replicas a fleet is to have, and which ones go first."""

    num_replicas: int
    remove: tuple[str, ...] = ()


class ScalingRule(Protocol):
    """Decides how many replicas a simulated fleet has.

    Attributes:
        interval_seconds: time between two decisions.
        needs_sample: whether it looks at the fleet; otherwise its samples have no replicas.
    """

    interval_seconds: float
    needs_sample: bool

    def decide(self, sample: PoolSample) -> ScalingTarget:
        """Return the target for a fleet that looks like this now."""
        ...
