"""CHAT, GENERATE and others: the fields of the bodies of Ollama's API, and the paths of its routes."""

from collections.abc import Mapping
from dataclasses import replace

from chairlift.protocol.ollama.options import OPTIONS
from chairlift.protocol.request_fields import CHAT as OPENAI_CHAT
from chairlift.protocol.request_fields import (
    EMBEDDING,
    MAX_INPUTS,
    MAX_MESSAGES,
    MAX_TOP_LOGPROBS,
    MODEL,
    Effect,
    Field,
)
from chairlift.protocol.request_schemas import TOOL, Schema

CHAT_PATH, GENERATE_PATH, EMBED_PATH, EMBEDDINGS_PATH = "/api/chat", "/api/generate", "/api/embed", "/api/embeddings"
SHOW_PATH, TAGS_PATH, PS_PATH, VERSION_PATH = "/api/show", "/api/tags", "/api/ps", "/api/version"

THINK_LEVELS = ("low", "medium", "high", "max")
JSON_FORMAT = "json"

_MAYBE_TEXT: Schema = {"type": ["string", "null"]}
_NO_IMAGES: Schema = {"type": ["array", "null"], "maxItems": 0}
_CALL: Schema = {
    "type": "object", "required": ["function"],
    "properties": {"function": {
        "type": "object", "required": ["name"],
        "properties": {"name": {"type": "string"}, "arguments": {"type": ["object", "string", "null"]}},
    }},
}  # fmt: skip


def _message(roles: tuple[str, ...], **properties: Schema) -> Schema:
    return {
        "type": "object", "required": ["role", *(["content"] if "content" in properties else [])],
        "properties": {"role": {"enum": [*roles]}, "content": _MAYBE_TEXT, "images": _NO_IMAGES, **properties},
    }  # fmt: skip


_MESSAGE: Schema = {"anyOf": [
    _message(("user",), content={"type": "string"}),
    _message(("system",)),
    _message(("tool",), tool_name=_MAYBE_TEXT, name=_MAYBE_TEXT),
    _message(("assistant",), thinking=_MAYBE_TEXT,
             tool_calls={"type": ["array", "null"], "items": _CALL}),
]}  # fmt: skip
"""A call has no id: a result is of the call with the name of its tool, or of the first one without a result."""

_IGNORED = Field({}, "has no effect here", Effect.IGNORED)
_KEEP_ALIVE = Field({}, "has no effect: the model stays loaded", Effect.IGNORED)

_COMMON: Mapping[str, Field] = {
    "model": Field(MODEL, "name of a model in /api/tags, with or without :latest; without a name the only one"),
    "stream": Field({"type": "boolean"}, "send the response as lines of JSON (default)"),
    "options": Field(OPTIONS, "options of sampling, and num_predict: the maximum number of output tokens"),
    "format": Field({"anyOf": [{"enum": ["", JSON_FORMAT]}, {"type": "object"}]}, "json, or a JSON Schema"),
    "think": Field({"anyOf": [{"type": "boolean"}, {"enum": [*THINK_LEVELS]}]}, "whether to reason, and how much"),
    "logprobs": Field({"type": "boolean"}, "whether to return the logprobs of the output's tokens"),
    "top_logprobs": Field(
        {"type": "integer", "minimum": 0, "maximum": MAX_TOP_LOGPROBS},
        "number of likeliest tokens to return with each token",
    ),
    "keep_alive": _KEEP_ALIVE, "truncate": _IGNORED, "shift": _IGNORED,
}  # fmt: skip

CHAT: Mapping[str, Field] = {
    **_COMMON,
    "messages": Field(
        {"type": "array", "items": _MESSAGE, "maxItems": MAX_MESSAGES},
        "the conversation; without one the request only checks that the model is there",
    ),
    "tools": replace(
        OPENAI_CHAT["tools"], schema={**OPENAI_CHAT["tools"].schema, "items": {**TOOL, "required": ["function"]}}
    ),
}
"""Name of each field of /api/chat -> its declaration."""


def _refused(help: str) -> Field:
    return Field({"enum": [None, ""]}, help, Effect.REFUSED, neutral=("",))


GENERATE: Mapping[str, Field] = {
    **_COMMON,
    "prompt": Field({"type": "string"}, "the prompt; without one the request only checks that the model is there"),
    "system": Field({"type": "string"}, "a system message before the prompt"),
    "raw": Field({"type": "boolean"}, "the prompt is not rendered by the chat template"),
    "images": Field({"type": "array", "maxItems": 0}, "only text is supported"),
    "suffix": _refused("no model here supports infilling"),
    "template": _refused("the operator chooses the chat template; use raw for a prompt that is rendered already"),
    "context": _IGNORED, "width": _IGNORED, "height": _IGNORED, "steps": _IGNORED,
}  # fmt: skip
"""Name of each field of /api/generate -> its declaration."""

EMBED: Mapping[str, Field] = {
    "model": _COMMON["model"],
    "input": Field(
        {"anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": MAX_INPUTS},
        ]},
        "a text, or a list of texts; without one no embeddings", required=True,
    ),
    "dimensions": EMBEDDING["dimensions"],
    "truncate": Field({"type": "boolean"}, "true has no effect: a text that is too long is rejected"),
    "options": _IGNORED, "keep_alive": _KEEP_ALIVE,
}  # fmt: skip
"""Name of each field of /api/embed -> its declaration."""

EMBEDDINGS: Mapping[str, Field] = {
    "model": _COMMON["model"],
    "prompt": Field({"type": "string"}, "the text"),
    "options": _IGNORED, "keep_alive": _KEEP_ALIVE,
}  # fmt: skip
"""Name of each field of /api/embeddings -> its declaration."""

SHOW: Mapping[str, Field] = {
    "model": Field(MODEL, "name of a model in /api/tags; without it the only one"),
    "name": Field(MODEL, "older name of model"),
    **dict.fromkeys(("verbose", "system", "template", "options"), _IGNORED),
}
"""Name of each field of /api/show -> its declaration."""
