"""batch_operations: every field is described, a file is a form, and the example of a batch is valid."""

from jsonschema import Draft202012Validator

from chairlift.protocol.batches.batch_fields import BATCH_FIELDS
from chairlift.protocol.batches.batch_openapi import batch_operations
from chairlift.protocol.batches.file_fields import FILE_FIELDS

OPERATIONS = {f"{method} {path}": operation for path, method, operation in batch_operations()}


def test_a_file_is_a_form_and_a_batch_is_json() -> None:
    [(kind, form)] = OPERATIONS["post /v1/files"]["requestBody"]["content"].items()
    assert kind == "multipart/form-data" and list(form["schema"]["properties"]) == [*FILE_FIELDS]
    assert form["schema"]["required"] == ["file", "purpose"]
    [(kind, body)] = OPERATIONS["post /v1/batches"]["requestBody"]["content"].items()
    assert kind == "application/json" and list(body["schema"]["properties"]) == [*BATCH_FIELDS]
    assert Draft202012Validator(body["schema"]).is_valid(body["example"])


def test_lists_have_their_pages() -> None:
    for path, most in (("/v1/files", 10_000), ("/v1/batches", 100)):
        parameters = {each["name"]: each["schema"] for each in OPERATIONS[f"get {path}"]["parameters"]}
        assert parameters["limit"]["maximum"] == most and {"order", "after"} < set(parameters)
