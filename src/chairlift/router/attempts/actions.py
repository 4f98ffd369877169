"""Actions: what a RequestMachine asks the proxy to do, in this order. The proxy reports back by events."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from chairlift.router.attempts.events import TimerKind
from chairlift.router.health.breaker import HealthOutcome


class ResponseMode(StrEnum):
    """How the response of an attempt is read."""

    TOKENS = "tokens"  # a stream whose chunks carry token ids
    PROGRESS = "progress"  # a response that is not streamed, with the server's progress events before it
    OPAQUE = "opaque"  # a stream of another server, which passes unparsed
    WHOLE = "whole"  # one body
    BYTES = "bytes"  # a stream of a route that the router does not know, whose end is that of the body


@dataclass(frozen=True, slots=True)
class PickReplica:
    """Pick a replica and count it as in flight, then report ReplicaPicked or NoReplica.

    Attributes:
        attempt: number of the new attempt.
        excluded: id and incarnation of the replicas that were tried; none of them may be picked.
        fingerprint: the replica must be resumable and report this fingerprint; "" allows every replica.
        replica_id: the only replica that may be picked, for a request that moves; "" allows every replica.
        purpose: why the attempt is made: first, retry, resume, hedge, handover or move.
    """

    attempt: int
    excluded: frozenset[tuple[str, str]] = frozenset()
    fingerprint: str = ""
    replica_id: str = ""
    purpose: str = field(default="first", compare=False)


@dataclass(frozen=True, slots=True)
class SendAttempt:
    """Connect to the replica and send the request, under the id that the client's request has.

    Attributes:
        attempt: number of the attempt.
        replica_id: the replica's URL.
        mode: how to read the response; PROGRESS needs the header `x-chairlift-progress: 1`.
        members: JSON members to append to the client's body (append_members).
        timeout_seconds: what is left of the request's deadline; None for none.
        purpose: why the attempt is made, for traces.
    """

    attempt: int
    replica_id: str
    mode: ResponseMode
    members: Mapping[str, Any]
    timeout_seconds: float | None
    purpose: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class AbortAttempt:
    """Close the attempt's connection, or stop picking; later events of it have no effect."""

    attempt: int


@dataclass(frozen=True, slots=True)
class DeliverBytes:
    """Send bytes of the attempt's response to the client; before the first ones, the head of that response."""

    attempt: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class PassResponse:
    """Send the client the attempt's status and body, such as a 4xx. A final action."""

    attempt: int
    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class RespondError:
    """Send the client an error as JSON; nothing of a response was sent before. A final action.

    Attributes:
        status: the HTTP status.
        code: the error's code.
        message: its message.
        retry_after: seconds after which to try again; None for an error that does not say.
        param: the field of the request that is wrong; None for none.
    """

    status: int
    code: str
    message: str
    retry_after: float | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class EndWithError:
    """Send the client a last event that reports an error, and no `[DONE]`. A final action."""

    code: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class CompleteResponse:
    """End the response, which is complete with this attempt. A final action."""

    attempt: int


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """End the request of a client that is gone, without a response. A final action."""


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Report TimerFired after `seconds`; replaces a timer of the same kind and attempt."""

    kind: TimerKind
    attempt: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ClearTimer:
    """Stop a timer."""

    kind: TimerKind
    attempt: int


@dataclass(frozen=True, slots=True)
class RecordOutcome:
    """Report to the replica's health what an attempt came to, once for each attempt that was picked.

    Attributes:
        attempt: number of the attempt.
        replica_id: the replica's URL.
        incarnation: of the replica's process when it was picked.
        outcome: fault, success or neutral.
        first_token_seconds: from sending to the first token; None without one.
        inter_token_seconds: mean time between tokens; None with fewer than two tokens.
        first_token_at: when the first token came, for traces; None without one.
        failure: why it failed, for traces; "" if it has not.
    """

    attempt: int
    replica_id: str
    incarnation: str
    outcome: HealthOutcome
    first_token_seconds: float | None = None
    inter_token_seconds: float | None = None
    first_token_at: float | None = field(default=None, compare=False)
    failure: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ReleaseReplica:
    """Lower the replica's in-flight count, once for each attempt that was picked."""

    attempt: int
    replica_id: str


FinalAction = PassResponse | RespondError | EndWithError | CompleteResponse | CancelRequest
Action = (
    PickReplica
    | SendAttempt
    | AbortAttempt
    | DeliverBytes
    | FinalAction
    | SetTimer
    | ClearTimer
    | RecordOutcome
    | ReleaseReplica
)
