"""error_responses.py: status, type and code of each error, retry headers, no internals."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import sampled_from, text

from chairlift.core import errors, router_errors
from chairlift.core.errors import (
    BodyTimeout,
    ChairliftError,
    ContextLengthExceeded,
    DetokenizeFailed,
    DuplicateRequestId,
    EngineDead,
    InvalidRequest,
    MethodNotAllowed,
    ModelNotFound,
    NonFiniteLogits,
    OutOfBlocks,
    Overloaded,
    QueueFull,
    RateLimited,
    RequestTimeout,
    TimeoutTooShort,
    Unauthorized,
    Unavailable,
)
from chairlift.core.router_errors import ReplicaFailed
from chairlift.web.error_responses import (
    _TABLE,
    REPEATS,
    error_body,
    error_headers,
    error_object,
    error_response_of,
    stream_error_event,
)
from support_server import events
from support_shares import for_each

SECRET = "/root/models/secret.safetensors at 10.0.0.7"

STATUSES = {
    "ContextLengthExceeded": 400,
    "RequestTooLarge": 400,
    "TokenOutOfRange": 400,
    "TimeoutTooShort": 400,
    "MalformedRequest": 400,
    "Unauthorized": 401,
    "Forbidden": 403,
    "NotFound": 404,
    "ModelNotFound": 404,
    "MethodNotAllowed": 405,
    "RequestTimeout": 408,
    "BodyTimeout": 408,
    "DuplicateRequestId": 409,
    "FingerprintMismatch": 409,
    "BodyTooLarge": 413,
    "UnsupportedMediaType": 415,
    "HeadersTooLarge": 431,
    "QueueFull": 429,
    "DeadlineUnreachable": 429,
    "RateLimited": 429,
    "Overloaded": 429,
    "InvalidRequest": 400,
    "RequestFailed": 500,
    "ForwardFailed": 500,
    "NonFiniteLogits": 500,
    "SamplingFailed": 500,
    "NoAllowedToken": 400,
    "StructuredOutputFailed": 500,
    "StructuredOutputTooComplex": 400,
    "DetokenizeFailed": 500,
    "EngineDead": 503,
    "OutOfBlocks": 503,
    "Unavailable": 503,
    "ReplicaFailed": 502,
    "ReplicaTimeout": 504,
}
AT_START = {
    "ConfigError",
    "DiscoveryFailed",
    "ModelError",
    "UnknownOption",
    "UnsupportedArchitecture",
    "UnsupportedModel",
}
BASES = {"ChairliftError", "RequestRejected"}


def error_types(root: type[ChairliftError] = ChairliftError) -> Iterator[type[ChairliftError]]:
    yield root
    for error_type in root.__subclasses__():
        if error_type.__module__ in {errors.__name__, router_errors.__name__}:
            yield from error_types(error_type)


def make_error(error_type: type[ChairliftError], message: str = SECRET, **details: Any) -> ChairliftError:
    return error_type.from_wire(message, details)


def headers(error: BaseException) -> dict[str, str]:
    result = [(name.decode(), value.decode()) for name, value in error_headers(error)]
    assert len(dict(result)) == len(result)
    return dict(result)


def test_every_kind_has_the_status_that_the_contract_names() -> None:
    assert {error_type.__name__ for error_type in error_types()} == STATUSES.keys() | AT_START | BASES
    statuses = {error_type.__name__: error_response_of(make_error(error_type)).status for error_type in error_types()}
    assert statuses == STATUSES | dict.fromkeys(AT_START | BASES, 500)


def test_the_table_has_no_unused_row() -> None:
    assert _TABLE.keys() <= {error_type.code for error_type in error_types()}
    assert {code for code in REPEATS if code in _TABLE} == REPEATS


def test_a_new_kind_is_answered_as_the_one_above_it() -> None:
    class NewError(InvalidRequest):
        code = "odd"

    assert error_response_of(NewError("x")) is error_response_of(InvalidRequest("x"))
    assert error_object(NewError("x"), "r")["code"] == "odd"


@pytest.mark.share(16)
@pytest.mark.parametrize(
    "error",
    [ValueError(SECRET), KeyError(SECRET), make_error(ChairliftError), *map(make_error, error_types())],
    ids=repr,
)
def test_what_is_the_servers_fault_says_nothing_of_its_inside_and_names_the_request(error: BaseException) -> None:
    result = error_object(error, "req-7")
    status = error_response_of(error).status
    if status >= 500 and not isinstance(error, Unavailable | ReplicaFailed):
        assert SECRET not in json.dumps(result)
        assert result["message"].endswith("(request req-7)")
        assert result["type"] == "server_error"
    elif status < 500:
        assert result["message"] == SECRET


@settings(max_examples=50)
@given(sampled_from([*error_types()]), text(max_size=50))
def test_the_body_is_always_an_openai_error_object(error_type: type[ChairliftError], message: str) -> None:
    result = json.loads(error_body(make_error(error_type, message), "req-7"))
    assert set(result) == {"error"}
    assert set(result["error"]) == {"message", "type", "param", "code"}
    assert isinstance(result["error"]["message"], str) and isinstance(result["error"]["type"], str)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            ContextLengthExceeded(5000, None, 4096),
            ("invalid_request_error", "prompt", "context_length_exceeded"),
        ),
        (InvalidRequest("no", param="messages"), ("invalid_request_error", "messages", "invalid_request")),
        (InvalidRequest("no"), ("invalid_request_error", None, "invalid_request")),
        (ModelNotFound("gpt-9", "tiny"), ("invalid_request_error", "model", "model_not_found")),
        (Unauthorized("no"), ("authentication_error", None, "invalid_api_key")),
        (RateLimited("no"), ("rate_limit_error", None, "rate_limited")),
        (ValueError("no"), ("server_error", None, "internal_error")),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_type_param_and_code(error: BaseException, expected: tuple[str, str | None, str]) -> None:
    result = error_object(error, "req-7")
    assert (result["type"], result["param"], result["code"]) == expected


def test_a_sentence_keeps_both_numbers() -> None:
    assert error_object(ContextLengthExceeded(5000, None, 4096), "r")["message"].count("5000") == 1
    assert "4096" in error_object(ContextLengthExceeded(5000, None, 4096), "r")["message"]


def test_who_is_unavailable_says_in_which_state() -> None:
    result = error_object(Unavailable("not yet", state="starting"), "req-7")
    assert (result["code"], result["message"]) == ("starting", "not yet (request req-7)")


# -- headers -------------------------------------------------------------------------------------------------------


def test_an_error_that_may_be_retried_says_when() -> None:
    assert headers(Overloaded("x", retry_after=2.25)) == {"retry-after": "3", "retry-after-ms": "2250"}
    assert headers(RateLimited("x", retry_after=0.0004)) == {"retry-after": "1", "retry-after-ms": "1"}


@for_each("seconds", [None, 0, -1, math.nan, math.inf, "soon"])
def test_a_time_that_is_none_becomes_a_second(seconds: Any) -> None:
    error = Overloaded("x", retry_after=seconds)
    assert headers(error) == {"retry-after": "1", "retry-after-ms": "1000"}


@pytest.mark.parametrize("error", [QueueFull(3, 3), EngineDead("x"), OutOfBlocks(0, 9), Unavailable("x")], ids=repr)
def test_what_passes_can_be_tried_again(error: ChairliftError) -> None:
    result = headers(error)
    assert set(result) == {"retry-after", "retry-after-ms"}


@pytest.mark.share(16)
@pytest.mark.parametrize(
    "error", [ValueError("x"), NonFiniteLogits("x"), RequestTimeout(1), *map(make_error, error_types())], ids=repr
)
def test_what_repeats_with_a_status_that_clients_try_again_says_so(error: ChairliftError) -> None:
    """The OpenAI client retries 408, 409, 429 and 5xx unless a header says otherwise."""
    result = headers(error)
    if error_response_of(error).status in (408, 409) or error_response_of(error).status >= 500:
        assert ("retry-after" in result) != (result.get("x-should-retry") == "false")
    if error_response_of(error).status == 429:
        assert "retry-after" in result and "x-should-retry" not in result
    if error_response_of(error).status in (400, 404, 413) and not isinstance(error, TimeoutTooShort):
        assert result == {}


@pytest.mark.parametrize("error_type", [RequestTimeout, BodyTimeout, DuplicateRequestId, TimeoutTooShort])
def test_what_would_end_the_same_way_is_not_tried_again(error_type: type[ChairliftError]) -> None:
    assert headers(make_error(error_type)) == {"x-should-retry": "false"}


def test_headers_that_belong_to_a_status() -> None:
    assert headers(Unauthorized("x"))["www-authenticate"] == "Bearer"
    assert headers(MethodNotAllowed("x", allow="GET, HEAD"))["allow"] == "GET, HEAD"


def test_an_error_event_says_whether_another_replica_may_help() -> None:
    found = {}
    for error in (
        Unavailable("x", state="draining"), EngineDead("x"), RequestTimeout(5.0), DetokenizeFailed("x"),
        RuntimeError("x"),
    ):  # fmt: skip
        [(name, data)] = events(stream_error_event(error, "r").decode())
        assert name == "error"
        found[data["error"]["code"]] = data["error"]["retryable"]
    assert found == {
        "draining": True, "engine_dead": True, "timeout": False, "detokenize_failed": False, "internal_error": False
    }  # fmt: skip
