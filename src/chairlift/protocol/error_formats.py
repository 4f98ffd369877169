"""format_error: the JSON body of an error response, in the form of the API that the path belongs to."""

from collections.abc import Mapping
from typing import Any

from chairlift.protocol.anthropic.context_length_message import context_length_message

ANTHROPIC_PATHS = frozenset({"/v1/messages", "/v1/messages/count_tokens"})
ANTHROPIC_PREFIX = "/v1/messages/"
OLLAMA_PREFIX = "/api/"

OPENAI_PREFIXES = (
    "/v1/chat/", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/score", "/v1/rerank", "/tokenize",
    "/detokenize",
)  # fmt: skip
"""Beginnings of paths that only the OpenAI API has, and of routes by which those of Anthropic's API are served."""

VERSION_HEADER = b"anthropic-version"
"""Header that every client of Anthropic's API sends; it decides on paths that both APIs, or none of them, have."""

REQUEST_ID_HEADER = b"request-id"
"""Header of Anthropic's API that has the request's id."""

_ANTHROPIC_TYPES = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip
_SAME_TYPES = frozenset({"invalid_request_error", "rate_limit_error"})
"""Types of errors within a stream that Anthropic's API has, too."""

_OVERLOADED_CODES = frozenset({"engine_dead", "unavailable", "draining", "out_of_blocks"})
"""Codes of errors within a stream after which another try may succeed."""


def has_anthropic_form(path: str, *, has_version: bool = False) -> bool:
    """Return whether errors of a path have the form of Anthropic's API; `has_version` as of format_error."""
    if path in ANTHROPIC_PATHS or path.startswith(ANTHROPIC_PREFIX):
        return True
    return has_version and not path.startswith((OLLAMA_PREFIX, *OPENAI_PREFIXES))


def has_openai_form(path: str) -> bool:
    """Return whether errors of a path have the form of the OpenAI API, for a client of either API."""
    return not has_anthropic_form(path) and not path.startswith(OLLAMA_PREFIX)


def format_error(
    path: str, error: Mapping[str, Any], status: int, request_id: str, *, has_version: bool = False
) -> dict[str, Any]:  # fmt: skip
    """Return the body of an error response; `error` is the error object of the OpenAI API.

    `has_version` is whether the request has VERSION_HEADER.
    """
    if has_anthropic_form(path, has_version=has_version):
        return anthropic_error(error, status) | {"request_id": request_id}
    if path.startswith(OLLAMA_PREFIX):
        return {"error": _with_field(error)}
    return {"error": error}


def _with_field(error: Mapping[str, Any]) -> str:
    """Return the message of an error, which names the field that is wrong."""
    message, param = str(error["message"]), error.get("param")
    return f"{param}: {message}" if isinstance(param, str) and f" {param}" not in f" {message}" else message


def anthropic_error(error: Mapping[str, Any], status: int) -> dict[str, Any]:
    """Return an error as Anthropic's API has it, in a response or as an event; 0 is the status of an event."""
    if status:
        kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if 400 <= status < 500 else "api_error")
    elif error.get("code") in _OVERLOADED_CODES:
        kind = "overloaded_error"
    elif error.get("code") == "timeout":
        kind = "timeout_error"
    else:
        kind = str(error.get("type")) if error.get("type") in _SAME_TYPES else "api_error"
    message = str(error["message"])
    if kind == "invalid_request_error":
        message = context_length_message(message) or message
    return {"type": "error", "error": {"type": kind, "message": message}}
