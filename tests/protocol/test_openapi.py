"""openapi.py: operations have the statuses and headers that they need."""

from typing import Any

from chairlift.protocol.openapi import ERROR_DESCRIPTIONS, Schema, make_document, make_operation, path_parameter
from support_shares import for_each

BODY: Schema = {"type": "object"}


def statuses(operation: Schema) -> str:
    return " ".join(operation["responses"])


@for_each(("options", "expected"), [
    ({}, "200 401 403 405"), ({"is_open": True}, "200 405"), ({"status": "202"}, "202 401 403 405"),
    ({"body": BODY}, "200 400 401 403 404 405 408 413 415 503"),
    ({"error_statuses": "404 502"}, "200 401 403 404 405 502"),
    ({"is_open": True, "unready": BODY}, "200 405 503"),
])  # fmt: skip
def test_an_operation_has_the_statuses_of_its_kind(options: dict[str, Any], expected: str) -> None:
    operation = make_operation("Do it", BODY, **options)
    assert statuses(operation) == expected
    described = {"200": "Done", "202": "Done", **ERROR_DESCRIPTIONS}
    if "unready" in options:
        described["503"] = "Not ready"
    for status, response in operation["responses"].items():
        assert response["headers"]["x-request-id"]["required"] is True
        assert response["description"] == described[status]
    assert ("requestBody" in operation) is ("body" in options)


def test_a_parameter_in_the_path_may_have_fixed_values() -> None:
    assert "enum" not in path_parameter("id")["schema"]
    assert path_parameter("id", ("a", "b"))["schema"]["enum"] == ["a", "b"]


def test_a_document_has_its_operations_by_path_and_method() -> None:
    operation = make_operation("Do it")
    assert make_document([("/a", "get", operation)], "text")["paths"] == {"/a": {"get": operation}}
