"""format_error: the bodies of errors by the API of the path."""

import pytest

from chairlift.core.errors import ContextLengthExceeded
from chairlift.protocol.error_formats import anthropic_error, format_error, has_anthropic_form, has_openai_form
from support_shares import for_each

ANTHROPIC = {
    "type": "error", "error": {"type": "invalid_request_error", "message": "x must be 1"}, "request_id": "r"
}  # fmt: skip
ERROR = {"message": "x must be 1", "type": "invalid_request_error", "param": "x", "code": "invalid_request"}


@pytest.mark.parametrize(("path", "body"), [
    ("", {"error": ERROR}),
    ("/v1/responses", {"error": ERROR}),
    ("/v1/messagesx", {"error": ERROR}),
    ("/v1/models/x", {"error": ERROR}),
    ("/api/chat", {"error": "x must be 1"}),
    ("/v1/messages", ANTHROPIC),
    ("/v1/messages/count_tokens", ANTHROPIC),
    ("/v1/messages/batches", ANTHROPIC),
])  # fmt: skip
def test_the_path_decides_on_the_form(path: str, body: object) -> None:
    assert format_error(path, ERROR, 400, "r") == body
    assert has_openai_form(path) == (body == {"error": ERROR})


@for_each(("path", "body"), [
    ("/v1/models", ANTHROPIC), ("/v1/models/x", ANTHROPIC), ("/v1/messages", ANTHROPIC), ("/v1/complete", ANTHROPIC),
    ("/v1/v1/messages", ANTHROPIC), ("/api/chat", {"error": "x must be 1"}),
    ("/v1/chat/completions", {"error": ERROR}), ("/v1/completions", {"error": ERROR}), ("/tokenize", {"error": ERROR}),
    ("/v1/responses/resp_1", {"error": ERROR}), ("/v1/embeddings", {"error": ERROR}),
])  # fmt: skip
def test_a_client_of_anthropic_gets_its_form_on_paths_of_both_apis(path: str, body: object) -> None:
    assert format_error(path, ERROR, 400, "r", has_version=True) == body
    assert has_anthropic_form(path, has_version=True) == (body == ANTHROPIC)


def test_a_prompt_that_is_too_long_is_said_in_the_words_of_anthropic() -> None:
    error = ERROR | {"message": ContextLengthExceeded(15, 32000, 8192).message}
    message = format_error("/v1/messages", error, 400, "r")["error"]["message"]
    assert message.startswith("input length and `max_tokens` exceed context limit: 15 + 32000 > 8192, decrease")
    assert format_error("/v1/chat/completions", error, 400, "r")["error"]["message"] == error["message"]


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
