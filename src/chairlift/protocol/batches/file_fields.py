"""FILE_FIELDS, PURPOSES: the fields of the form with which a file is uploaded."""

from collections.abc import Mapping

from chairlift.protocol.request_fields import Effect, Field

FILES_PATH = "/v1/files"
BATCH_PURPOSE = "batch"
OUTPUT_PURPOSE = "batch_output"
"""Purpose of the files that batches write."""

PURPOSES = (BATCH_PURPOSE, "user_data", "assistants", "fine-tune", "vision", "evals")
"""Purposes that an uploaded file may have; only files of the first one are used, as inputs of batches."""

FILE_FIELDS: Mapping[str, Field] = {
    "file": Field({"contentMediaType": "application/octet-stream"}, "the file, which is not empty", required=True),
    "purpose": Field({"enum": [*PURPOSES]}, "batch: the input of a batch; others are only stored", required=True),
    "expires_after": Field({}, "has no effect here: files stay until they are deleted", Effect.IGNORED),
}
"""Name of each field of /v1/files -> its declaration."""
