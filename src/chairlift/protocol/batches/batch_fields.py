"""BATCH_FIELDS and read_batch_request: the fields of the body with which a batch is created."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chairlift.core.validation import invalid_param, string
from chairlift.protocol.anthropic.messages_request_fields import PATH as MESSAGES_PATH
from chairlift.protocol.field_check import format_short, split_fields
from chairlift.protocol.metadata import METADATA_SCHEMA, read_metadata
from chairlift.protocol.request_fields import POOLING_ROUTES, Effect, Field
from chairlift.protocol.responses.responses_request_fields import PATH as RESPONSES_PATH

BATCHES_PATH = "/v1/batches"

BATCH_ENDPOINTS = (
    "/v1/chat/completions", "/v1/completions", *POOLING_ROUTES, RESPONSES_PATH, MESSAGES_PATH,
)  # fmt: skip
"""Routes that the requests of a batch may go to: those whose responses come whole unless `stream` is true."""

MAX_ID_CHARS = 128
MAX_WINDOW_HOURS = 168

_WINDOW_PATTERN = "^([1-9]|[1-9][0-9]|1[0-5][0-9]|16[0-8])h$"

BATCH_FIELDS: Mapping[str, Field] = {
    "input_file_id": Field(
        {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARS},
        "id of an uploaded file of the purpose batch: one request a line", required=True,
    ),
    "endpoint": Field(
        {"enum": [*BATCH_ENDPOINTS]}, "path that all requests of the file have as their url", required=True
    ),
    "completion_window": Field(
        {"type": "string", "pattern": _WINDOW_PATTERN},
        f"hours after which requests without a response expire, as in 24h; at most {MAX_WINDOW_HOURS}h", required=True,
    ),
    "metadata": Field(METADATA_SCHEMA, "returned with the batch"),
    "output_expires_after": Field({}, "has no effect here: files stay until they are deleted", Effect.IGNORED),
}  # fmt: skip
"""Name of each field of /v1/batches -> its declaration."""


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """The body with which a batch is created.

    Attributes:
        input_file_id: id of the file with the requests.
        endpoint: path of all requests.
        completion_window: the window as the client has written it.
        window_seconds: its length.
        metadata: the client's own values.
        ignored: names of the fields without effect.
    """

    input_file_id: str
    endpoint: str
    completion_window: str
    window_seconds: int
    metadata: Mapping[str, str]
    ignored: tuple[str, ...]


def read_batch_request(body: Mapping[str, Any]) -> BatchRequest:
    """Parse a body. Raises InvalidRequest."""
    fields, ignored = split_fields(body, BATCH_FIELDS)
    file_id = string("input_file_id", fields["input_file_id"], MAX_ID_CHARS)
    endpoint, window = fields["endpoint"], fields["completion_window"]
    if not isinstance(endpoint, str) or endpoint not in BATCH_ENDPOINTS:
        raise invalid_param("endpoint", f"must be one of {', '.join(BATCH_ENDPOINTS)}, got {format_short(endpoint)}")
    hours = _hours(window)
    if hours is None:
        raise invalid_param(
            "completion_window",
            f"must be 24h, or another number of hours up to {MAX_WINDOW_HOURS}h, got {format_short(window)}",
        )
    return BatchRequest(file_id, endpoint, window, hours * 3600, read_metadata(fields.get("metadata")), ignored)


def _hours(window: Any) -> int | None:
    number = window.removesuffix("h") if isinstance(window, str) and window.endswith("h") else ""
    is_number = number.isascii() and number.isdecimal() and number[0] != "0" and len(number) <= 3
    return int(number) if is_number and int(number) <= MAX_WINDOW_HOURS else None
