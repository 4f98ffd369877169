"""AttemptsFailure: the error that ends a request which no attempt has completed."""

from dataclasses import dataclass
from enum import StrEnum

import orjson

from chairlift.core.errors import error_from_wire
from chairlift.core.router_errors import ReplicaFailed, ReplicaTimeout
from chairlift.protocol.sse import named_event
from chairlift.router.attempts.actions import EndWithError, RespondError
from chairlift.router.attempts.attempt_reader import error_of
from chairlift.router.attempts.events import FailureReason
from chairlift.web.error_responses import SERVER, error_response_of

_TEXTS = {
    FailureReason.CONNECT: "no connection to the replica",
    FailureReason.RESET: "the connection was reset",
    FailureReason.EOF: "the connection was closed before the response was complete",
    FailureReason.FIRST_TOKEN_TIMEOUT: "the first token came too late",
    FailureReason.UNRESPONSIVE: "the first token came too late, and health checks of the replica fail",
    FailureReason.INTER_TOKEN_TIMEOUT: "the next token came too late",
    FailureReason.STATUS: "the replica answered with a server error",
    FailureReason.REJECTED: "the replica is full",
    FailureReason.ERROR_EVENT: "the replica reported an error",
    FailureReason.UNAVAILABLE: "the replica drains or is full",
    FailureReason.BAD_STREAM: "the replica's stream was invalid",
    FailureReason.RESUME_REJECTED: "the replica rejected the tokens to resume from",
    FailureReason.FINGERPRINT: "the replica has other weights",
}
_TIMEOUTS = (FailureReason.FIRST_TOKEN_TIMEOUT, FailureReason.UNRESPONSIVE, FailureReason.INTER_TOKEN_TIMEOUT)


class FailureCause(StrEnum):
    """What kept a request from another attempt."""

    ATTEMPTS = "attempts"
    BUDGET = "budget"
    REPLICAS = "replicas"
    DEADLINE = "deadline"
    UNRESUMABLE = "unresumable"


@dataclass(frozen=True, slots=True)
class AttemptsFailure:
    """Why a request fails.

    Attributes:
        cause: what kept it from another attempt.
        reason: of the last attempt; None where none was made.
        num_attempts: requests that were sent.
        retry_after: smallest Retry-After of the replicas that were full.
    """

    cause: FailureCause
    reason: FailureReason | None
    num_attempts: int
    retry_after: float | None

    def respond(self) -> RespondError:
        """Return the response of a request for which nothing was sent."""
        if self.cause is FailureCause.DEADLINE:
            return RespondError(504, ReplicaTimeout.code, self._message())
        if self.reason is FailureReason.REJECTED:
            return RespondError(429, "overloaded", self._message(), self.retry_after)
        if self.reason is None:
            return RespondError(503, "unavailable", self._message(), self.retry_after)
        if self.reason in _TIMEOUTS:
            return RespondError(504, ReplicaTimeout.code, self._message(), self.retry_after)
        return RespondError(502, ReplicaFailed.code, self._message(), self.retry_after)

    def end_stream(self, request_id: str) -> EndWithError:
        """Return the last event of a stream that had begun."""
        code = "timeout" if self.cause is FailureCause.DEADLINE else "resume_failed"
        message = f"{self._message()} (request {request_id})"
        error = {"message": message, "type": SERVER, "param": None, "code": code}
        return EndWithError(code, named_event(b"error", orjson.dumps({"error": error})))

    def _message(self) -> str:
        attempts = f"{self.num_attempts} attempt{'' if self.num_attempts == 1 else 's'}"
        what = {
            FailureCause.ATTEMPTS: f"{attempts} failed, which is the limit",
            FailureCause.BUDGET: f"{attempts} failed and the retry budget is used up; retry later",
            FailureCause.REPLICAS: f"{attempts} failed and no other replica can take the request",
            FailureCause.DEADLINE: f"the deadline of the request has passed after {attempts}",
            FailureCause.UNRESUMABLE: f"{attempts} failed and the response cannot be resumed on another replica",
        }[self.cause]
        if self.cause is FailureCause.REPLICAS and not self.num_attempts:
            what = "no replica can take the request now; retry later"
        return what if self.reason is None else f"{what}; the last failure: {_TEXTS[self.reason]}"


def respond_reported_error(payload: bytes) -> RespondError:
    """Return the response to an error that a replica reported in a stream, before the client received a byte."""
    code, message = error_of(payload)
    param = orjson.loads(payload)["error"].get("param") if code else None
    return RespondError(error_response_of(error_from_wire(code, message, {})).status, code, message, param=param)


def event_of_error_response(status: int, body: bytes) -> bytes:
    """Return the last event of a stream without output that a comment has begun, from a replica's error response."""
    try:
        error = orjson.loads(body)["error"]
        is_object = isinstance(error["message"], str)
    except (ValueError, KeyError, TypeError):
        is_object = False
    if not is_object:
        message = f"the replica answered with the status {status}"
        error = {"message": message, "type": SERVER, "param": None, "code": ReplicaFailed.code}
    return named_event(b"error", orjson.dumps({"error": error}))


def end_with_reported_error(payload: bytes) -> EndWithError:
    """Return the last event of a stream that had begun, with a replica's own error."""
    return EndWithError(error_of(payload)[0], named_event(b"error", payload))
