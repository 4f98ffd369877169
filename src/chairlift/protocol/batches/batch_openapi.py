"""batch_operations: what the OpenAPI document says of /v1/files and /v1/batches, in a server and in a router."""

from collections.abc import Iterable

from chairlift.protocol.batches.batch_fields import BATCH_FIELDS, BATCHES_PATH
from chairlift.protocol.batches.batch_schemas import BATCH, BATCHES, DELETED_FILE, FILE, FILES
from chairlift.protocol.batches.file_fields import FILE_FIELDS, FILES_PATH
from chairlift.protocol.openapi import Schema, body_schema, make_operation, path_parameter

STORED = "404 503"
"""Error statuses of an operation on a file or a batch."""


def _query(name: str, description: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


_ORDER = _query("order", "desc: the newest first (default); asc", {"enum": ["asc", "desc"]})
_AFTER = _query("after", "Id of the entry before the first one", {"type": "string"})
_PURPOSE = _query("purpose", "Only files of this purpose", {"type": "string"})


def batch_operations() -> Iterable[tuple[str, str, Schema]]:
    """Yield path, method and description of each."""
    one_file, one_batch, entry_id = f"{FILES_PATH}/{{id}}", f"{BATCHES_PATH}/{{id}}", path_parameter("id")
    yield FILES_PATH, "post", _with_form(make_operation(
        "Upload a file", FILE, body=body_schema(FILE_FIELDS, ()), links={
            "file": {"operationId": "file", "parameters": {"id": "$response.body#/id"}},
        },
    ))  # fmt: skip
    yield FILES_PATH, "get", make_operation(
        "List the files", FILES, parameters=[_PURPOSE, _limit(10_000, 10_000), _ORDER, _AFTER],
        error_statuses="400 503",
    )  # fmt: skip
    yield one_file, "get", make_operation(
        "Describe a file", FILE, parameters=[entry_id], name="file", error_statuses=STORED
    )  # fmt: skip
    yield one_file, "delete", make_operation(
        "Delete a file; a batch that was made of it goes on", DELETED_FILE, parameters=[entry_id],
        error_statuses=STORED,
    )  # fmt: skip
    yield f"{one_file}/content", "get", make_operation(
        "Content of a file", {"type": "string", "format": "binary"}, kind="application/octet-stream",
        parameters=[entry_id], error_statuses=STORED,
    )  # fmt: skip
    yield BATCHES_PATH, "post", _with_example(make_operation(
        "Run the requests of a file in the background", BATCH, body=body_schema(BATCH_FIELDS, ()),
        error_statuses="429", links={
            "batch": {"operationId": "batch", "parameters": {"id": "$response.body#/id"}},
            "cancelled": {"operationId": "cancelBatch", "parameters": {"id": "$response.body#/id"}},
        },
    ))  # fmt: skip
    yield BATCHES_PATH, "get", make_operation(
        "List the batches", BATCHES, parameters=[_limit(20, 100), _ORDER, _AFTER], error_statuses="400 503"
    )  # fmt: skip
    yield one_batch, "get", make_operation(
        "State of a batch", BATCH, parameters=[entry_id], name="batch", error_statuses=STORED
    )  # fmt: skip
    yield f"{one_batch}/cancel", "post", make_operation(
        "Cancel a batch; its responses so far become its output", BATCH, parameters=[entry_id], name="cancelBatch",
        error_statuses=f"400 {STORED}",
    )  # fmt: skip


def _limit(default: int, most: int) -> Schema:
    schema: Schema = {"type": "integer", "minimum": 1, "maximum": most}
    return _query("limit", f"Entries to return, {default} by default", schema)


def _with_form(operation: Schema) -> Schema:
    """Return an operation whose body is a form."""
    [body] = operation["requestBody"]["content"].values()
    return operation | {"requestBody": {"required": True, "content": {"multipart/form-data": body}}}


def _with_example(operation: Schema) -> Schema:
    [body] = operation["requestBody"]["content"].values()
    body["example"] = {
        "input_file_id": "file-0123456789abcdef01234567", "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }  # fmt: skip
    return operation
