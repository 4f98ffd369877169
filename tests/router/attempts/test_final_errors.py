"""AttemptsFailure: status, code and message of each failure, also as an event; reported errors keep theirs."""

import orjson
import pytest

from chairlift.router.attempts.actions import EndWithError, RespondError
from chairlift.router.attempts.events import FailureReason
from chairlift.router.attempts.final_errors import (
    AttemptsFailure,
    FailureCause,
    end_with_reported_error,
    event_of_error_response,
    respond_reported_error,
)
from support_shares import for_each


@for_each(
    ("cause", "reason", "status", "code"),
    [
        (FailureCause.REPLICAS, None, 503, "unavailable"),
        (FailureCause.REPLICAS, FailureReason.REJECTED, 429, "overloaded"),
        (FailureCause.BUDGET, FailureReason.REJECTED, 429, "overloaded"),
        (FailureCause.ATTEMPTS, FailureReason.RESET, 502, "replica_failed"),
        (FailureCause.REPLICAS, FailureReason.CONNECT, 502, "replica_failed"),
        (FailureCause.ATTEMPTS, FailureReason.STATUS, 502, "replica_failed"),
        (FailureCause.ATTEMPTS, FailureReason.FIRST_TOKEN_TIMEOUT, 504, "replica_timeout"),
        (FailureCause.ATTEMPTS, FailureReason.INTER_TOKEN_TIMEOUT, 504, "replica_timeout"),
        (FailureCause.DEADLINE, FailureReason.REJECTED, 504, "replica_timeout"),
        (FailureCause.DEADLINE, None, 504, "replica_timeout"),
    ],
)
def test_status_and_code_where_nothing_was_sent(
    cause: FailureCause, reason: FailureReason | None, status: int, code: str
) -> None:
    error = AttemptsFailure(cause, reason, 2, 3.5).respond()
    assert (error.status, error.code) == (status, code)
    assert error.retry_after == (None if cause is FailureCause.DEADLINE else 3.5)


@pytest.mark.share(24)
@pytest.mark.parametrize("cause", FailureCause)
@pytest.mark.parametrize("reason", [None, *FailureReason])
def test_every_failure_has_a_message_and_ends_a_stream_as_an_error_event(
    cause: FailureCause, reason: FailureReason | None
) -> None:
    failure = AttemptsFailure(cause, reason, 2, None)
    event = failure.end_stream("r1")
    assert event.code == ("timeout" if cause is FailureCause.DEADLINE else "resume_failed")
    name, _, data = event.payload.partition(b"\n")
    assert name == b"event: error" and data.endswith(b"\n\n")
    error = orjson.loads(data.removeprefix(b"data: "))["error"]
    assert error == {
        "message": f"{failure.respond().message} (request r1)", "type": "server_error", "param": None,
        "code": event.code,
    }  # fmt: skip
    assert ("the last failure: " in error["message"]) == (reason is not None)


def test_the_message_names_the_number_of_attempts() -> None:
    one = AttemptsFailure(FailureCause.ATTEMPTS, FailureReason.EOF, 1, None).respond().message
    assert one.startswith("1 attempt failed, which is the limit; the last failure: the connection was closed")
    two = AttemptsFailure(FailureCause.DEADLINE, None, 2, None).respond().message
    assert two == "the deadline of the request has passed after 2 attempts"


@pytest.mark.parametrize(("code", "status"), [("timeout", 408), ("forward_failed", 500), ("of another version", 500)])
def test_an_error_that_a_replica_reported_keeps_code_and_message(code: str, status: int) -> None:
    payload = orjson.dumps({"error": {"code": code, "message": "no"}})
    assert respond_reported_error(payload) == RespondError(status, code, "no")
    assert end_with_reported_error(payload) == EndWithError(code, b"event: error\ndata: " + payload + b"\n\n")


def test_a_reported_error_before_the_first_byte_keeps_its_field() -> None:
    payload = b'{"error":{"code":"invalid_request","message":"is wrong","param":"tools"}}'
    assert respond_reported_error(payload) == RespondError(400, "invalid_request", "is wrong", param="tools")


@pytest.mark.parametrize(
    ("body", "message", "code"),
    [
        (b'{"error": {\n"message": "bad", "code": "x", "param": "n"}}', "bad", "x"),
        (b'{"error": "bad"}', "the replica answered with the status 422", "replica_failed"),
        (b'{"error": {"message": 7}}', "the replica answered with the status 422", "replica_failed"),
        (b"<html>", "the replica answered with the status 422", "replica_failed"),
        (b"[]", "the replica answered with the status 422", "replica_failed"),
        (b"", "the replica answered with the status 422", "replica_failed"),
    ],
)
def test_an_error_response_is_the_last_event_of_a_stream_that_a_comment_has_begun(
    body: bytes, message: str, code: str
) -> None:
    event = event_of_error_response(422, body)
    assert event.startswith(b"event: error\ndata: {") and event.count(b"\n") == 3
    error = orjson.loads(event.partition(b"data: ")[2])["error"]
    assert (error["message"], error["code"]) == (message, code)
