"""METADATA_SCHEMA, read_metadata: the client's own values of a response or a batch, which are returned with it."""

from typing import Any

from chairlift.core.validation import invalid_param
from chairlift.protocol.field_check import format_short
from chairlift.protocol.request_schemas import Schema

MAX_METADATA = 16
MAX_METADATA_KEY_CHARS = 64
MAX_METADATA_CHARS = 512

METADATA_SCHEMA: Schema = {
    "type": "object", "maxProperties": MAX_METADATA, "propertyNames": {"maxLength": MAX_METADATA_KEY_CHARS},
    "additionalProperties": {"type": "string", "maxLength": MAX_METADATA_CHARS},
}  # fmt: skip


def read_metadata(metadata: Any) -> dict[str, str]:
    """Return the values, none for None. Raises InvalidRequest."""
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise invalid_param("metadata", f"must be an object, got {format_short(metadata)}")
    if len(metadata) > MAX_METADATA:
        raise invalid_param("metadata", f"has {len(metadata)} entries, the limit is {MAX_METADATA}")
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY_CHARS:
            raise invalid_param(
                "metadata", f"has a key of {len(key)} characters, the limit is {MAX_METADATA_KEY_CHARS}"
            )
        if not isinstance(value, str) or len(value) > MAX_METADATA_CHARS:
            raise invalid_param("metadata", f"must have strings of at most {MAX_METADATA_CHARS} characters as values")
    return metadata
