"""MESSAGES and COUNT_TOKENS: the fields of bodies of /v1/messages and /v1/messages/count_tokens."""

from collections.abc import Mapping

from chairlift.core.sampling_params import MAX_STOP_STRING_CHARS, MAX_STOP_STRINGS
from chairlift.protocol.request_fields import CHAT, MAX_MESSAGES, OUTPUT_TOKENS, Effect, Field
from chairlift.protocol.request_schemas import ARGUMENTS_TYPE, MAX_TOOL_NAME_CHARS, MAX_TOOLS, Schema

PATH = "/v1/messages"
COUNT_PATH = "/v1/messages/count_tokens"

THINKING_TYPES = ("enabled", "disabled", "adaptive")
DISPLAYS = ("summarized", "omitted")
"""Displays of thinking that have an effect; clients send others, whose thinking is shown, too."""
EFFORTS = ("low", "medium", "high", "xhigh", "max")
"""Effort of Anthropic's API -> reasoning_effort of chat completions."""

SAME_FIELDS = (
    "temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty", "logit_bias", "min_p",
    "typical_p", "epsilon_cutoff", "eta_cutoff", "repetition_penalty", "no_repeat_ngram_size", "min_tokens",
    "ignore_eos", "stop_token_ids", "allowed_token_ids", "bad_words", "logits_processors", "priority", "timeout",
    "cache_salt", "chat_template_kwargs",
)  # fmt: skip
"""Fields that mean what they mean in chat completions; those that Anthropic's API does not have are our own."""

TOOL_BLOCKS = ("_tool_use", "_tool_result")
"""Ends of the types of blocks of tools that Anthropic's servers run, such as web_search_tool_result."""

OTHER_BLOCKS = ("container_upload", "compaction", "fallback")
"""Types of other blocks that have nothing for a model that is not Anthropic's."""

_TEXT: Schema = {"type": "string"}
_MAYBE_BOOLEAN: Schema = {"type": ["boolean", "null"]}


def _block(kind: str, also: Schema | None = None, /, **properties: Schema) -> Schema:
    """Return the schema of a content block; the properties in `also` may be absent."""
    return {
        "type": "object", "required": ["type", *properties],
        "properties": {"type": {"const": kind}, **properties, **(also or {})},
    }  # fmt: skip


def _content(*blocks: Schema) -> Schema:
    return {"anyOf": [_TEXT, {"type": "array", "items": {"anyOf": [*blocks]}}]}


def _message(role: str, content: Schema) -> Schema:
    return {
        "type": "object", "required": ["role", "content"], "properties": {"role": {"const": role}, "content": content}
    }  # fmt: skip


_TEXT_BLOCK = _block("text", text=_TEXT)
_TEXTS = _content(_TEXT_BLOCK)
_TEXT_SOURCE: Schema = {"anyOf": [_block("text", data=_TEXT), _block("content", content=_TEXTS)]}
_READ_BLOCKS = (
    _TEXT_BLOCK,
    _block("document", source=_TEXT_SOURCE),
    _block("search_result", content=_TEXTS),
    _block("tool_reference", tool_name=_TEXT),
)
_RESULT = _block(
    "tool_result", {"content": {"anyOf": [*_content(*_READ_BLOCKS)["anyOf"], {"type": "null"}]},
                    "is_error": _MAYBE_BOOLEAN}, tool_use_id=_TEXT,
)  # fmt: skip
_LEFT_OUT: Schema = {"type": "object", "required": ["type"], "properties": {"type": {"anyOf": [
    {"enum": [*OTHER_BLOCKS]}, {"type": "string", "pattern": f"({'|'.join(TOOL_BLOCKS)})$"},
]}}}  # fmt: skip
_MESSAGE: Schema = {"anyOf": [
    _message("user", _content(*_READ_BLOCKS, _RESULT, _LEFT_OUT)),
    _message("assistant", _content(
        _TEXT_BLOCK, _block("thinking", thinking=_TEXT), _block("redacted_thinking"),
        _block("tool_use", {"input": {"type": ["object", "string", "null"]}}, id=_TEXT, name=_TEXT), _LEFT_OUT,
    )),
    _message("system", _content(_TEXT_BLOCK)),
]}  # fmt: skip
_TYPE: Schema = {"type": "string", "minLength": 1}
_OWN_TOOL: Schema = {
    "type": "object", "required": ["name"],
    "properties": {
        "type": {"anyOf": [_TYPE, {"type": "null"}]},
        "name": {"type": "string", "pattern": f"^[A-Za-z0-9_.:-]{{1,{MAX_TOOL_NAME_CHARS}}}$"},
        "description": {"type": ["string", "null"]},
        "input_schema": {"type": ["object", "null"], "properties": {"type": ARGUMENTS_TYPE}},
        "strict": _MAYBE_BOOLEAN,
    },
}  # fmt: skip
_TYPED_TOOL: Schema = {
    "type": "object", "required": ["type"],
    "properties": {"type": {**_TYPE, "not": {"const": "custom"}}, "input_schema": {"not": {"type": "object"}}},
}  # fmt: skip
_TOOL: Schema = {"anyOf": [_OWN_TOOL, _TYPED_TOOL]}
_SINGLE: Schema = {"disable_parallel_tool_use": _MAYBE_BOOLEAN}
_TOOL_CHOICE: Schema = {"anyOf": [
    _block("auto", _SINGLE), _block("any", _SINGLE), _block("none"), _block("tool", _SINGLE, name=_TEXT),
]}  # fmt: skip
_THINKING: Schema = {
    "type": "object", "required": ["type"],
    "properties": {"type": {"enum": [*THINKING_TYPES]}, "display": {"type": ["string", "null"]}},
}  # fmt: skip
_FORMAT: Schema = _block("json_schema", schema={"type": "object"})
_OUTPUT_CONFIG: Schema = {"type": "object", "properties": {
    "format": {"anyOf": [_FORMAT, {"type": "null"}]}, "effort": {"enum": [None, *EFFORTS]},
}}  # fmt: skip


def _ignored(help: str = "has no effect here") -> Field:
    return Field({}, help, Effect.IGNORED)


_CONVERSATION: Mapping[str, Field] = {
    "model": CHAT["model"],
    "messages": Field(
        {"type": "array", "items": _MESSAGE, "minItems": 1, "maxItems": MAX_MESSAGES},
        "the conversation; an answer continues a final message of the assistant", required=True,
    ),
    "system": Field(_content(_TEXT_BLOCK), "a system message before the conversation"),
    "tools": Field(
        {"type": "array", "items": _TOOL, "maxItems": MAX_TOOLS},
        "functions that the model may call; tools that Anthropic's servers run are left out by name",
    ),
    "tool_choice": Field(_TOOL_CHOICE, "auto, any, none, or the tool to call"),
    "thinking": Field(_THINKING, "enabled, disabled or adaptive, for chat templates that can tell the model"),
    "output_config": Field(_OUTPUT_CONFIG, "format: a JSON Schema that the text follows; effort: how much to reason"),
    "output_format": Field(_FORMAT, "older name of output_config.format"),
    "cache_control": Field({}, "accepted: prefixes are cached automatically"),
    "chat_template_kwargs": CHAT["chat_template_kwargs"],
}  # fmt: skip

MESSAGES: Mapping[str, Field] = {
    **_CONVERSATION,
    "max_tokens": Field(
        OUTPUT_TOKENS, "maximum number of output tokens; -1 for as many as fit", required=True
    ),
    "stream": CHAT["stream"],
    "stop_sequences": Field(
        {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": MAX_STOP_STRING_CHARS},
         "maxItems": MAX_STOP_STRINGS},
        CHAT["stop"].help,
    ),
    "metadata": Field(
        {"type": "object", "properties": {"user_id": {"type": ["string", "null"]}}}, "user_id: shown in the log"
    ),
    **{name: CHAT[name] for name in SAME_FIELDS},
    **dict.fromkeys(
        ("service_tier", "container", "context_management", "diagnostics", "inference_geo", "mcp_servers", "speed",
         "user_profile_id", "workspace_id", "betas"),
        _ignored(),
    ),
}  # fmt: skip
"""Name of each field of /v1/messages -> its declaration."""

COUNT_TOKENS: Mapping[str, Field] = {
    **_CONVERSATION,
    **{
        name: _ignored("has no effect on the number of tokens")
        for name in MESSAGES if name not in _CONVERSATION and name != "stream"
    },
    "stream": Field({"enum": [None, False]}, "the count comes whole", Effect.REFUSED, neutral=(False,)),
}  # fmt: skip
"""Name of each field of /v1/messages/count_tokens -> its declaration."""
