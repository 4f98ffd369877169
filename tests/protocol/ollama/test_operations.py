"""ollama_operations: each route is described, with Ollama's form of errors."""

from chairlift.protocol.ollama import fields
from chairlift.protocol.ollama.operations import ollama_operations
from chairlift.protocol.ollama.response_schema import ERROR

OPERATIONS = {
    path: (method, operation)
    for path, method, operation in ollama_operations(["m"], parameters=[], error_statuses="409 429 500")
}


def test_every_route_is_there() -> None:
    assert {path: method for path, (method, _) in OPERATIONS.items()} == {
        fields.CHAT_PATH: "post", fields.GENERATE_PATH: "post", fields.EMBED_PATH: "post", fields.SHOW_PATH: "post",
        fields.EMBEDDINGS_PATH: "post", fields.TAGS_PATH: "get", fields.PS_PATH: "get", fields.VERSION_PATH: "get",
    }  # fmt: skip


def test_errors_have_ollamas_form() -> None:
    for _, operation in OPERATIONS.values():
        errors = [response for status, response in operation["responses"].items() if status != "200"]
        assert errors and all(each["content"]["application/json"]["schema"] == ERROR for each in errors)
    assert "application/x-ndjson" in OPERATIONS[fields.CHAT_PATH][1]["responses"]["200"]["content"]


def test_a_model_to_show_has_one_of_two_names() -> None:
    schema = OPERATIONS[fields.SHOW_PATH][1]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == [] and len(schema["anyOf"]) == 2
    assert all(schema["properties"][name]["anyOf"][0]["enum"] == ["m"] for name in ("model", "name"))
