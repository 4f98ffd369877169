"""Fields of Ollama's API: every field of the client's requests is declared, and the schemas say what is valid."""

from typing import Any

import jsonschema
import ollama
import pytest
from ollama import _types as types
from pydantic import BaseModel

from chairlift.protocol.ollama.fields import CHAT, EMBED, EMBEDDINGS, GENERATE, SHOW
from chairlift.protocol.openapi import body_schema
from chairlift.protocol.request_fields import Field
from support_shares import for_each

TABLES: list[tuple[dict[str, Field], type[BaseModel]]] = [
    (dict(CHAT), types.ChatRequest), (dict(GENERATE), types.GenerateRequest), (dict(EMBED), types.EmbedRequest),
    (dict(EMBEDDINGS), types.EmbeddingsRequest), (dict(SHOW), types.ShowRequest),
]  # fmt: skip


@pytest.mark.parametrize(("table", "kind"), TABLES, ids=lambda each: getattr(each, "__name__", ""))
def test_every_field_of_the_client_is_declared(table: dict[str, Field], kind: type[BaseModel]) -> None:
    assert kind.model_fields.keys() <= table.keys()


def test_the_clients_own_messages_are_valid() -> None:
    call = ollama.Message.ToolCall(function=ollama.Message.ToolCall.Function(name="f", arguments={"a": 1}))
    messages = [
        ollama.Message(role="user", content="x"), ollama.Message(role="assistant", thinking="x", tool_calls=[call]),
        ollama.Message(role="tool", content="x", tool_name="f"),
    ]  # fmt: skip
    validator = jsonschema.Draft202012Validator(body_schema(CHAT, ()))
    validator.validate({"model": "m", "messages": [each.model_dump() for each in messages]})


BODIES: list[tuple[dict[str, Field], dict[str, Any], bool]] = [
    (dict(CHAT), {}, True), (dict(CHAT), {"messages": None, "stream": None, "options": None, "think": None}, True),
    (dict(CHAT), {"messages": [{"role": "user"}]}, False), (dict(CHAT), {"messages": [{"role": "tool"}]}, True),
    (dict(CHAT), {"messages": [{"role": "user", "content": 7}]}, False),
    (dict(CHAT), {"messages": [{"role": "x", "content": ""}]}, False),
    (dict(CHAT), {"messages": [{"role": "user", "content": "x", "images": ["x"]}]}, False),
    (dict(CHAT), {"think": "high"}, True), (dict(CHAT), {"think": "huge"}, False),
    (dict(CHAT), {"format": "json"}, True), (dict(CHAT), {"format": "yaml"}, False), (dict(CHAT), {"format": {}}, True),
    (dict(CHAT), {"options": {"temperature": 3}}, False), (dict(CHAT), {"options": {"num_ctx": "x"}}, True),
    (dict(GENERATE), {"prompt": "x", "suffix": "", "template": None, "images": [], "context": [1]}, True),
    (dict(GENERATE), {"suffix": "x"}, False), (dict(GENERATE), {"images": ["x"]}, False),
    (dict(EMBED), {"input": ["a", ""]}, False), (dict(EMBED), {"input": ""}, True), (dict(EMBED), {}, False),
]  # fmt: skip


@for_each(("table", "body", "is_valid"), BODIES)
def test_what_the_schema_says(table: dict[str, Field], body: dict[str, Any], is_valid: bool) -> None:
    validator = jsonschema.Draft202012Validator(body_schema(table, ("m",)))
    assert validator.is_valid({"model": "m", **body}) == is_valid
