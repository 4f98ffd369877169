"""FILE, BATCH and others: JSON schemas of the response bodies of /v1/files and /v1/batches."""

from chairlift.protocol.request_schemas import Schema
from chairlift.protocol.response_schemas import COUNT, MAYBE_TEXT, TEXT
from chairlift.protocol.schema_builders import array_schema, nullable, object_schema

_TIME = nullable(COUNT)
_ERROR = object_schema(code=TEXT, message=TEXT, param=MAYBE_TEXT, line=nullable(COUNT))


def _listed(items: Schema) -> Schema:
    return object_schema(
        object={"const": "list"}, data=array_schema(items), has_more={"type": "boolean"}, first_id=MAYBE_TEXT,
        last_id=MAYBE_TEXT,
    )  # fmt: skip


FILE = object_schema(
    id=TEXT, object={"const": "file"}, bytes=COUNT, created_at=COUNT, filename=TEXT, purpose=TEXT,
    status={"const": "processed"},
)  # fmt: skip
FILES = _listed(FILE)
DELETED_FILE = object_schema(id=TEXT, object={"const": "file"}, deleted={"const": True})
BATCH = object_schema(
    id=TEXT, object={"const": "batch"}, endpoint=TEXT, input_file_id=TEXT, completion_window=TEXT,
    status={"enum": ["validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling",
                     "cancelled"]},
    errors=nullable(object_schema(object={"const": "list"}, data=array_schema(_ERROR, 1))),
    output_file_id=MAYBE_TEXT, error_file_id=MAYBE_TEXT, created_at=COUNT, expires_at=COUNT, in_progress_at=_TIME,
    finalizing_at=_TIME, completed_at=_TIME, failed_at=_TIME, expired_at=_TIME, cancelling_at=_TIME,
    cancelled_at=_TIME, request_counts=object_schema(total=COUNT, completed=COUNT, failed=COUNT),
    metadata=nullable({"type": "object", "additionalProperties": TEXT}),
)  # fmt: skip
BATCHES = _listed(BATCH)
