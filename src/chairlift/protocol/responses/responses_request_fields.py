"""RESPONSES: the fields of a body of /v1/responses."""

from collections.abc import Mapping
from typing import Any

from chairlift.core.chat_template_names_and_limits import REASONING_EFFORTS
from chairlift.protocol.metadata import METADATA_SCHEMA
from chairlift.protocol.plain_choice import ANY, CHOICES, NAMED_TOOL
from chairlift.protocol.request_fields import CHAT, MAX_MESSAGES, MAX_TOP_LOGPROBS, OUTPUT_TOKENS, Effect, Field
from chairlift.protocol.request_schemas import (
    LEFT_OUT_CHOICE,
    MAX_TOOL_NAME_CHARS,
    MAX_TOOLS,
    TOOL,
    Schema,
    allowed_tools,
)

PATH = "/v1/responses"
MAX_ID_CHARS = 256
MAX_INCLUDED = 32
LOGPROBS = "message.output_text.logprobs"
"""Entry of `include` for the logprobs of the text."""

SAME_FIELDS = (
    "temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "logit_bias", "stop", "top_k", "min_p",
    "typical_p", "epsilon_cutoff", "eta_cutoff", "repetition_penalty", "no_repeat_ngram_size", "min_tokens",
    "ignore_eos", "stop_token_ids", "allowed_token_ids", "bad_words", "logits_processors", "priority", "timeout",
    "cache_salt", "chat_template_kwargs", "parallel_tool_calls", "user", "regex", "grammar", "choice",
    "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "json_schema", "ebnf",
)  # fmt: skip
"""Fields that mean what they mean in chat completions; those that OpenAI's Responses do not have are our own."""

OTHER_ITEMS = (
    "compaction", "compaction_summary", "context_compaction", "ghost_snapshot", "mcp_list_tools",
    "mcp_approval_request", "mcp_approval_response", "tool_search_output", "agent_message", "program", "program_output",
    "configuration_update", "compaction_trigger",
)  # fmt: skip
"""Items that have nothing for a model that is not OpenAI's; calls and their results have names that end so."""

_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_TOOL_NAME_CHARS}
_NAMESPACE: Schema = {
    "type": "object", "required": ["type", "name", "tools"],
    "properties": {
        "type": {"const": "namespace"}, "name": {"type": "string", "minLength": 1},
        "tools": {"type": "array", "items": TOOL, "maxItems": MAX_TOOLS},
    },
}  # fmt: skip
_TOOL: Schema = {"anyOf": [
    {"allOf": [TOOL, {"not": {"properties": {"type": {"const": "namespace"}}, "required": ["type"]}}]}, _NAMESPACE,
]}  # fmt: skip
_NAMED_TOOL: Schema = {"anyOf": [
    {"type": "object", "required": ["type", "name"],
     "properties": {"type": {"enum": ["function", "custom"]}, "name": _NAME}},
    *({"type": "object", "required": ["type", kind], "properties": {
        "type": {"const": kind}, kind: {"type": "object", "required": ["name"], "properties": {"name": _NAME}},
    }} for kind in ("function", "custom")),
]}  # fmt: skip
_WORD: Schema = {"enum": [*CHOICES, ANY]}
_TOOL_CHOICE: Schema = {"anyOf": [
    _WORD,
    {"type": "object", "required": ["type"], "properties": {"type": _WORD}},
    {"type": "object", "required": ["type", "name"], "properties": {"type": {"const": NAMED_TOOL}, "name": _NAME}},
    _NAMED_TOOL,
    *allowed_tools(_NAMED_TOOL),
    LEFT_OUT_CHOICE,
]}  # fmt: skip
_PART: Schema = {"anyOf": [
    {"type": "object", "required": ["type", "text"], "properties": {
        "type": {"enum": ["input_text", "output_text", "text"]}, "text": {"type": "string"},
    }},
    {"type": "object", "required": ["type", "refusal"], "properties": {
        "type": {"const": "refusal"}, "refusal": {"type": "string"},
    }},
]}  # fmt: skip
_CONTENT: Schema = {"anyOf": [
    {"type": "string"}, {"type": "array", "items": {"anyOf": [_PART, {"type": "string"}]}},
]}  # fmt: skip


MESSAGE, REFERENCE = "message", "item_reference"
ADDITIONAL_TOOLS = "additional_tools"
TOOL_ITEMS = (ADDITIONAL_TOOLS, "tool_search_output")
"""Items that have tools for the rest of the conversation."""


def item_type(item: Mapping[str, Any]) -> Any:
    """Return the type of an item; that of messages and references may be left out. None for another one without."""
    kind = item.get("type")
    if kind is None and "role" in item:
        return MESSAGE
    return REFERENCE if kind is None and "id" in item and len(item) <= 2 else kind


def _item(kind: str, also: Schema | None = None, /, **properties: Schema) -> Schema:
    """Return the schema of an item; the properties in `also` may be absent."""
    return {
        "type": "object", "required": ["type", *properties],
        "properties": {"type": {"const": kind}, **properties, **(also or {})},
    }  # fmt: skip


_TEXT: Schema = {"type": "string"}
_OUTPUT: Schema = {"anyOf": [*_CONTENT["anyOf"], {"type": "null"}]}
_CALLS = ("function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output")
_REASONING: Schema = {"type": ["array", "null"], "items": {
    "type": "object", "required": ["text"], "properties": {"text": _TEXT},
}}  # fmt: skip
_ITEM: Schema = {"anyOf": [
    {"type": "object", "required": ["role", "content"], "properties": {
        "type": {"const": "message"}, "role": {"enum": ["user", "system", "developer", "assistant"]},
        "content": _CONTENT,
    }},
    _item("function_call", {"arguments": {"type": ["string", "object", "null"]}}, call_id=_TEXT, name=_TEXT),
    _item("function_call_output", {"output": _OUTPUT}, call_id=_TEXT),
    _item("custom_tool_call", call_id=_TEXT, name=_TEXT, input=_TEXT),
    _item("custom_tool_call_output", {"output": _OUTPUT}, call_id=_TEXT),
    _item("reasoning", {"content": _REASONING, "summary": _REASONING}),
    _item("additional_tools", tools={"type": "array", "items": _TOOL, "maxItems": MAX_TOOLS}),
    _item("item_reference", id={"type": "string", "maxLength": MAX_ID_CHARS}),
    {"type": "object", "required": ["id"], "properties": {"id": {"type": "string", "maxLength": MAX_ID_CHARS}},
     "additionalProperties": False},
    {"type": "object", "required": ["type"], "properties": {"type": {"anyOf": [
        {"enum": [*OTHER_ITEMS]},
        {"type": "string", "pattern": "_call(_output)?$", "not": {"enum": [*_CALLS]}},
    ]}}},
]}  # fmt: skip
_INPUT: Schema = {"anyOf": [
    {"type": "string"}, {"type": "array", "items": _ITEM, "maxItems": MAX_MESSAGES},
]}  # fmt: skip
_FORMAT: Schema = {"anyOf": [
    {"type": "object", "required": ["type"], "properties": {"type": {"enum": ["text", "json_object"]}}},
    {"type": "object", "required": ["type", "schema"], "properties": {
        "type": {"const": "json_schema"}, "schema": {"type": "object"}, "name": {"type": ["string", "null"]},
        "strict": {"type": ["boolean", "null"]},
    }},
]}  # fmt: skip


def _refused(help: str, *neutral: bool | int) -> Field:
    return Field({"enum": [None, *neutral]} if neutral else {"type": "null"}, help, Effect.REFUSED, neutral=neutral)


RESPONSES: Mapping[str, Field] = {
    "model": CHAT["model"],
    "input": Field(_INPUT, "a text, or the items of a conversation", required=True),
    "instructions": Field({"type": "string"}, "a system message before the input"),
    "previous_response_id": Field(
        {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARS},
        "a stored response whose conversation goes on; its instructions do not",
    ),
    "max_output_tokens": Field(
        OUTPUT_TOKENS, "maximum number of output tokens; without it, or with -1, as many as fit"
    ),
    "stream": CHAT["stream"],
    "store": Field({"type": "boolean"}, "keep the response for previous_response_id while there is room (default)"),
    "tools": Field(
        {"type": "array", "items": _TOOL, "maxItems": MAX_TOOLS},
        "functions, custom tools and namespaces of them that the model may call; others are left out by name",
    ),
    "tool_choice": Field(_TOOL_CHOICE, "none, auto, required, the function to call, or allowed_tools"),
    "text": Field(
        {"type": "object", "properties": {"format": {"anyOf": [_FORMAT, {"type": "null"}]}}},
        "format: text, json_object or json_schema",
    ),
    "reasoning": Field(
        {"type": "object", "properties": {"effort": {"enum": [None, *REASONING_EFFORTS]}}},
        "effort: how much to reason, for chat templates that can tell the model",
    ),
    "include": Field(
        {"type": "array", "items": {"type": "string"}, "maxItems": MAX_INCLUDED},
        f"{LOGPROBS}: the logprobs of the text; others have no effect",
    ),
    "top_logprobs": Field(
        {"type": "integer", "minimum": 0, "maximum": MAX_TOP_LOGPROBS},
        "number of likeliest tokens to return with each token",
    ),
    "metadata": Field(METADATA_SCHEMA, "returned with the response"),
    **{name: CHAT[name] for name in SAME_FIELDS},
    "background": _refused("the response comes at once, or as a stream", False),
    "conversation": _refused("send the items, or use previous_response_id"),
    "prompt": _refused("there are no stored prompts; send instructions and input"),
    **{name: field for name, field in CHAT.items() if field.effect is Effect.REFUSED},
    "n": _refused("a response has one choice", 1),
    "messages": _refused("use input"),
    "response_format": _refused("use text.format"),
    "logprobs": _refused(f"use top_logprobs, or include {LOGPROBS}", False),
    **dict.fromkeys(
        ("access_programs", "context_management", "image", "max_tool_calls", "moderation", "prompt_cache_key",
         "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "service_tier", "stream_options",
         "truncation", "background_options"),
        Field({}, "has no effect here", Effect.IGNORED),
    ),
}  # fmt: skip
"""Name of each field of /v1/responses -> its declaration."""
