"""format_error: the bodies of errors by the API of the path."""

import pytest

from chairlift.protocol.error_formats import anthropic_error, format_error, has_openai_form
from support_shares import for_each

ERROR = {"message": "x must be 1", "type": "invalid_request_error", "param": "x", "code": "invalid_request"}


@pytest.mark.parametrize(("path", "body"), [
    ("", {"error": ERROR}),
    ("/v1/responses", {"error": ERROR}),
    ("/v1/messages/batches", {"error": ERROR}),
    ("/api/chat", {"error": "x must be 1"}),
    ("/v1/messages", {"type": "error", "error": {"type": "invalid_request_error", "message": "x must be 1"},
                      "request_id": "r"}),
])  # fmt: skip
def test_the_path_decides_on_the_form(path: str, body: object) -> None:
    assert format_error(path, ERROR, 400, "r") == body
    assert has_openai_form(path) == (body == {"error": ERROR})


def test_a_message_of_ollama_names_the_field() -> None:
    assert format_error("/api/embed", ERROR | {"message": "the text is long"}, 400, "r") == {
        "error": "x: the text is long"
    }
    assert format_error("/api/embed", ERROR | {"message": "it is long", "param": None}, 400, "r") == {
        "error": "it is long"
    }


@for_each(("status", "kind"), [
    (400, "invalid_request_error"), (401, "authentication_error"), (403, "permission_error"),
    (404, "not_found_error"), (408, "invalid_request_error"), (413, "request_too_large"), (429, "rate_limit_error"),
    (500, "api_error"), (502, "api_error"), (503, "overloaded_error"), (504, "timeout_error"),
])  # fmt: skip
def test_types_of_anthropic_by_status(status: int, kind: str) -> None:
    assert anthropic_error(ERROR, status)["error"]["type"] == kind


@for_each(("error", "kind"), [
    ({"type": "server_error", "code": "engine_dead"}, "overloaded_error"),
    ({"type": "server_error", "code": "draining"}, "overloaded_error"),
    ({"type": "invalid_request_error", "code": "timeout"}, "timeout_error"),
    ({"type": "invalid_request_error", "code": "no_allowed_token"}, "invalid_request_error"),
    ({"type": "rate_limit_error", "code": "overloaded"}, "rate_limit_error"),
    ({"type": "server_error", "code": "request_failed"}, "api_error"),
    ({}, "api_error"),
])  # fmt: skip
def test_types_of_anthropic_within_a_stream(error: dict[str, str], kind: str) -> None:
    assert anthropic_error({"message": "x", **error}, 0) == {"type": "error", "error": {"type": kind, "message": "x"}}
