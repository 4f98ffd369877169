"""Events: what a RequestMachine is notified of. `attempt` is the number that PickReplica gave the attempt."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from chairlift.router.attempts.chunks import Chunk

TIMER_TOLERANCE_SECONDS = 1e-3
"""An event loop may fire a timer this much too early."""


class FailureReason(StrEnum):
    """Why an attempt brought no complete response."""

    CONNECT = "connect"  # refused, or a timeout of TCP or TLS; nothing was sent
    RESET = "reset"  # the connection was cut before the response ended
    EOF = "eof"  # the connection was closed before the response ended
    FIRST_TOKEN_TIMEOUT = "first_token_timeout"
    UNRESPONSIVE = "unresponsive"  # the first token is late, and health checks fail, too
    INTER_TOKEN_TIMEOUT = "inter_token_timeout"
    STATUS = "status"  # 5xx other than 503
    REJECTED = "rejected"  # 429 or 503
    ERROR_EVENT = "error_event"  # the stream reported an error of the replica
    UNAVAILABLE = "unavailable"  # the stream reported that the replica drains, or has no room
    BAD_STREAM = "bad_stream"  # the stream contradicts itself: a gap between positions, no JSON
    RESUME_REJECTED = "resume_rejected"  # 4xx to a request that resumes
    FINGERPRINT = "fingerprint"  # 409 to a request that resumes: the replica has other weights by now


FULL_STATUSES = frozenset({429, 503})
"""Statuses of a replica that is full or drains: another one may take the request, and this one is not ill."""

LOST_REPLICA = frozenset({FailureReason.CONNECT, FailureReason.RESET, FailureReason.EOF, FailureReason.UNRESPONSIVE})
"""Failures after which the replica works on the request no more, so a retry adds no load."""


class TimerKind(StrEnum):
    """What a timer ends. One attempt has at most one of the first three at a time."""

    CONNECT = "connect"
    FIRST_TOKEN = "first_token"
    INTER_TOKEN = "inter_token"
    HEDGE = "hedge"  # start a second attempt
    RETRY = "retry"  # all replicas were full; pick again; attempt 0
    DEADLINE = "deadline"  # of the whole request; attempt 0


TIMEOUTS = {
    TimerKind.CONNECT: FailureReason.CONNECT,
    TimerKind.FIRST_TOKEN: FailureReason.FIRST_TOKEN_TIMEOUT,
    TimerKind.INTER_TOKEN: FailureReason.INTER_TOKEN_TIMEOUT,
}
"""The failures of attempts whose timer has fired."""


@dataclass(frozen=True, slots=True)
class RequestStarted:
    """The request was read and may be routed; the first event."""


@dataclass(frozen=True, slots=True)
class ReplicaPicked:
    """A replica was picked and its in-flight count raised; ReleaseReplica follows exactly once.

    Attributes:
        attempt: number of the attempt.
        replica_id: the replica's URL.
        incarnation: changes when the replica's process restarts; "" if unknown.
        fingerprint: of weights and adapter; streams resume only between equal ones; "" if unknown.
        is_resumable: whether the replica is a Chairlift server, which reports token ids and accepts `resume`.
    """

    attempt: int
    replica_id: str
    incarnation: str = ""
    fingerprint: str = ""
    is_resumable: bool = False


@dataclass(frozen=True, slots=True)
class NoReplica:
    """No replica may be picked.

    Attributes:
        attempt: number of the attempt.
        retry_after: seconds until one is expected, if that is known.
        ready: id and incarnation of the healthy replicas of the pool, which this request has tried or cannot use.
    """

    attempt: int
    retry_after: float | None = None
    ready: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class ConnectFailed:
    """The connection was refused, or its TLS failed; the replica has not received the request."""

    attempt: int


@dataclass(frozen=True, slots=True)
class RequestSent:
    """The connection is open and the request is being sent."""

    attempt: int


@dataclass(frozen=True, slots=True)
class ResponseReceived:
    """The status of the response, with its body unless the status is 2xx; `retry_after` is in seconds."""

    attempt: int
    status: int
    retry_after: float | None = None
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class ChunksReceived:
    """Chunks of a response, in order."""

    attempt: int
    chunks: Sequence[Chunk]


@dataclass(frozen=True, slots=True)
class CommentReceived:
    """Comments of a stream, with nothing else beside them."""

    attempt: int


@dataclass(frozen=True, slots=True)
class ResponseEnded:
    """The response is complete: `payload` is the last event of a stream, or the whole body of another response."""

    attempt: int
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class AttemptBroken:
    """A response that was not complete ended.

    Attributes:
        attempt: number of the attempt.
        reason: RESET, EOF, ERROR_EVENT, UNAVAILABLE or BAD_STREAM.
    """

    attempt: int
    reason: FailureReason


@dataclass(frozen=True, slots=True)
class RequestErrorReported:
    """The stream reported an error of the request itself, which other replicas would repeat; `payload` is its JSON."""

    attempt: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class ReplicaDraining:
    """The replica drains and gives its streams away now."""

    attempt: int


@dataclass(frozen=True, slots=True)
class ReplicaAvailable:
    """Another replica has become ready, on which a request that waits for its first token may start sooner.

    Attributes:
        attempt: number of the attempt that waits.
        replica_id: the other replica's URL.
    """

    attempt: int
    replica_id: str


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time of a SetTimer is over.

    Attributes:
        kind: what it ends.
        attempt: its attempt; 0 where it belongs to the whole request.
        is_replica_unhealthy: whether the attempt's replica fails its health checks.
    """

    kind: TimerKind
    attempt: int = 0
    is_replica_unhealthy: bool = False


@dataclass(frozen=True, slots=True)
class ClientDisconnected:
    """The client has closed its connection."""


AttemptEvent = ChunksReceived | ResponseEnded | AttemptBroken | RequestErrorReported
"""What the bytes of a response can say."""

Event = (
    RequestStarted
    | ReplicaPicked
    | NoReplica
    | ConnectFailed
    | RequestSent
    | ResponseReceived
    | CommentReceived
    | AttemptEvent
    | ReplicaDraining
    | ReplicaAvailable
    | TimerFired
    | ClientDisconnected
)
