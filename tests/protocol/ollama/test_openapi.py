"""ollama_operations: each route is described, with Ollama's form of errors."""

import jsonschema

from chairlift.protocol.ollama import fields
from chairlift.protocol.ollama.answer_writer import AnswerWriter
from chairlift.protocol.ollama.model_descriptions import running_models, shown_model, tags
from chairlift.protocol.ollama.openapi import (
    ANSWER,
    ERROR,
    MESSAGE_ANSWER,
    MODEL_LIST,
    RUNNING,
    SHOWN,
    ollama_operations,
)
from chairlift.protocol.ollama.request import OllamaRequest
from chairlift.protocol.translation.base import FieldNames, Json
from support_shares import for_each

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


def test_a_model_to_show_has_either_name_or_none() -> None:
    schema = OPERATIONS[fields.SHOW_PATH][1]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == []
    assert all(schema["properties"][name]["anyOf"][0]["enum"] == ["m", ""] for name in ("model", "name"))


REQUEST = OllamaRequest(body={}, ignored=(), names=FieldNames(), model="m", load_reason="load")
CARD = {"id": "m", "created": 7, "max_model_len": 9}
MESSAGE, TEXT = AnswerWriter(REQUEST, is_chat=True), AnswerWriter(REQUEST, is_chat=False)
WHOLE = {"choices": [{"finish_reason": "stop", "message": {"content": "a", "reasoning_content": "b"}}], "usage": {}}


@for_each(("schema", "body"), [
    (MESSAGE_ANSWER, MESSAGE.loaded("m")), (MESSAGE_ANSWER, MESSAGE.whole(WHOLE, 0.0)),
    (ANSWER, TEXT.whole(WHOLE, 0.0)),
    (MODEL_LIST, tags([CARD])), (RUNNING, running_models([CARD])), (SHOWN, shown_model(CARD)),
    (ERROR, {"error": "x must be 1"}),
])  # fmt: skip
def test_what_is_built_is_valid(schema: Json, body: Json) -> None:
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(body)
    assert not validator.is_valid({}) and not validator.is_valid({"error": {"message": "x"}})
