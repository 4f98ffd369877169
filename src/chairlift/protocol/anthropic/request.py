"""read_message_request and read_count_request: bodies of Anthropic's API as those of the OpenAI API."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chairlift.core.validation import boolean, invalid_param
from chairlift.protocol.anthropic.chat_tools import TOOL_MEMBERS, chat_tool_choice, chat_tools
from chairlift.protocol.anthropic.messages_from_blocks import MessagesFromBlocks
from chairlift.protocol.anthropic.messages_request_fields import (
    COUNT_TOKENS,
    DISPLAYS,
    EFFORTS,
    MESSAGES,
    SAME_FIELDS,
    THINKING_TYPES,
)
from chairlift.protocol.field_check import format_short, split_fields
from chairlift.protocol.request_fields import Field
from chairlift.protocol.translation.base import FieldNames, Json

THINKING_EFFORT = "medium"
"""The reasoning_effort of a request whose thinking is enabled or adaptive, and that names no effort."""

MESSAGE_MEMBERS = {".tool_call_id": ".tool_use_id"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRequest:
    """A request of /v1/messages or /v1/messages/count_tokens.

    Attributes:
        chat: body of /v1/chat/completions, or of /tokenize.
        ignored: names of fields without effect.
        names: what the fields of `chat` are called in the request.
        stop_sequences: the texts that end the answer.
    """

    chat: Json
    ignored: tuple[str, ...]
    names: FieldNames
    stop_sequences: tuple[str, ...] = ()


def read_message_request(body: Mapping[str, Any]) -> MessageRequest:
    """Translate a body of /v1/messages. Raises InvalidRequest that names the request's own field."""
    fields, ignored, chat, names = _read_conversation(body, MESSAGES)
    chat["max_tokens"] = fields["max_tokens"]
    chat |= {name: fields[name] for name in SAME_FIELDS if name in fields}
    if _omits_thinking(fields.get("thinking")):
        chat["include_reasoning"] = False
    if boolean("stream", fields.get("stream", False)):
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    stops = fields.get("stop_sequences", [])
    if not isinstance(stops, list):
        raise invalid_param("stop_sequences", f"must be a list of strings, got {format_short(stops)}")
    if stops:
        chat["stop"] = stops
    chat |= _metadata(fields.get("metadata"), ignored)
    return MessageRequest(chat=chat, ignored=tuple(ignored), names=names, stop_sequences=tuple(stops))


def read_count_request(body: Mapping[str, Any]) -> MessageRequest:
    """Translate a body of /v1/messages/count_tokens. Raises InvalidRequest that names the request's own field."""
    fields, ignored, chat, names = _read_conversation(body, COUNT_TOKENS)
    if "chat_template_kwargs" in fields:
        chat["chat_template_kwargs"] = fields["chat_template_kwargs"]
    chat.pop("parallel_tool_calls", None)  # it concerns the output only
    return MessageRequest(chat=chat, ignored=tuple(ignored), names=names)


def _read_conversation(
    body: Mapping[str, Any], table: Mapping[str, Field]
) -> tuple[dict[str, Any], list[str], Json, FieldNames]:
    """Return the fields of a body, the names of those without effect, what makes its prompt, and the names."""
    fields, ignored_fields = split_fields(body, table)
    ignored = list(ignored_fields)
    messages = MessagesFromBlocks()
    if "system" in fields:
        messages.add_system(fields["system"])
    messages.add_messages(fields["messages"])
    ignored += messages.left_out.names
    chat: Json = {"model": fields.get("model", "")}
    if messages.finish():
        chat["continue_final_message"] = True
    chat["messages"] = messages.messages
    tools, tool_places, left_out = chat_tools(fields.get("tools"), ignored)
    if tools:
        chat["tools"] = tools
    choice = chat_tool_choice(fields.get("tool_choice"))
    chosen = choice.get("tool_choice", "none")
    is_left_out = isinstance(chosen, dict) and chosen["function"]["name"] in left_out
    if is_left_out or (left_out and not tools and chosen not in ("auto", "none")):
        ignored.append("tool_choice")  # it names tools that are left out
    else:
        chat |= choice
    config = fields.get("output_config")
    if config is None:
        config = {}
    elif not isinstance(config, dict):
        raise invalid_param("output_config", f"must be an object, got {format_short(config)}")
    ignored += [f"output_config.{name}" for name in config if name not in ("format", "effort")]
    format_name, output_format = "output_config.format", config.get("format")
    if output_format is None:
        format_name, output_format = "output_format", fields.get("output_format")
    if output_format is not None:
        chat["response_format"] = _response_format(output_format, format_name)
    effort_name, effort = _effort(fields.get("thinking"), config.get("effort"), ignored)
    if effort:
        chat["reasoning_effort"] = effort
    return fields, ignored, chat, FieldNames(
        {
            "stop": "stop_sequences", "prompt": "messages", "response_format": format_name, "user": "metadata.user_id",
            "tools.function.strict": "tools.strict", "reasoning_effort": effort_name,
            "continue_final_message": messages.places[-1],
        },
        messages.places, MESSAGE_MEMBERS, tool_places, TOOL_MEMBERS, messages.paths,
    )  # fmt: skip


def _response_format(value: Any, name: str) -> Json:
    if not isinstance(value, dict) or value.get("type") != "json_schema":
        raise invalid_param(name, "must be an object of type json_schema with a schema")
    if not isinstance(value.get("schema"), dict):
        raise invalid_param(f"{name}.schema", f"must be an object, got {format_short(value.get('schema'))}")
    return {"type": "json_schema", "schema": value["schema"]}


def _effort(thinking: Any, effort: Any, ignored: list[str]) -> tuple[str, str]:
    """Return the field that decides how much to reason, and reasoning_effort; "" leaves it to the chat template."""
    if effort is not None and effort not in EFFORTS:
        raise invalid_param("output_config.effort", f"must be one of {', '.join(EFFORTS)}, got {format_short(effort)}")
    kind = None if thinking is None else _thinking_type(thinking, ignored)
    if kind == "disabled":
        return "thinking", "none"
    if effort is not None:
        return "output_config.effort", effort
    return "thinking", "" if kind is None else THINKING_EFFORT


def _thinking_type(thinking: Any, ignored: list[str]) -> str:
    if not isinstance(thinking, dict):
        raise invalid_param("thinking", f"must be an object, got {format_short(thinking)}")
    kind, display = thinking.get("type"), thinking.get("display")
    if not isinstance(kind, str) or kind not in THINKING_TYPES:
        raise invalid_param("thinking.type", f"must be one of {', '.join(THINKING_TYPES)}, got {format_short(kind)}")
    if not isinstance(display, str | None):
        raise invalid_param("thinking.display", f"must be a string or null, got {format_short(display)}")
    read = ("type", "display") if display is None or display in DISPLAYS else ("type",)
    ignored += [f"thinking.{name}" for name in thinking if name not in read]
    return kind


def _omits_thinking(thinking: Any) -> bool:
    """Return whether the response has no thinking blocks; `thinking` was checked."""
    return thinking is not None and (thinking["type"] == "disabled" or thinking.get("display") == "omitted")


def _metadata(metadata: Any, ignored: list[str]) -> Json:
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise invalid_param("metadata", f"must be an object, got {format_short(metadata)}")
    ignored += [f"metadata.{name}" for name in metadata if name != "user_id"]
    return {} if metadata.get("user_id") is None else {"user": metadata["user_id"]}
