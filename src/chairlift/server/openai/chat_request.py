"""ChatRequest and read_chat: parse a body of /v1/chat/completions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chairlift.core.sampling_params import MAX_TOKENS
from chairlift.core.validation import as_tuple, boolean, integer, invalid_param
from chairlift.protocol.field_check import format_short, split_fields
from chairlift.protocol.request_fields import AS_MANY_AS_FIT, CHAT, MAX_MESSAGES, MAX_MODALITIES, MAX_TOP_LOGPROBS
from chairlift.server.openai.base_request import BaseRequest, common_fields
from chairlift.server.openai.chat_template_fields import read_render_options
from chairlift.server.openai.tool_choice import ToolChoice
from chairlift.server.openai.tools_and_structured_output import ToolsAndStructuredOutput
from chairlift.text.chat_messages import ChatMessages, flat_content
from chairlift.text.chat_template import ChatTemplate, RenderOptions
from chairlift.text.tool_formats.base import ToolFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(BaseRequest):
    """A request to /v1/chat/completions."""

    messages: ChatMessages
    tools: ToolChoice | None
    logprobs: bool
    rendering: RenderOptions
    includes_reasoning: bool


def read_chat(
    body: Mapping[str, Any], tool_format: ToolFormat, template: ChatTemplate | None = None
) -> ChatRequest:  # fmt: skip
    """Parse a body of /v1/chat/completions. Raises InvalidRequest.

    `template` renders the messages; the model calls tools in `tool_format`.
    """
    fields, ignored = split_fields(body, CHAT)
    rendering, unread = read_render_options(fields, template)
    messages = ChatMessages.parse(listed_messages(fields["messages"]), "" if template is None else template.text)
    _check_modalities(fields)
    answer = ToolsAndStructuredOutput.read(fields, tool_format, template, rendering)
    prediction, unread_members = _prediction(fields.get("prediction"))
    logprobs = _take_logprobs(fields)
    _unite_output_limits(fields)
    common = common_fields(
        fields, (*ignored, *unread, *messages.unread, *answer.ignored, *unread_members), answer.structured,
        {"logprobs": logprobs, **answer.sampling},
    )  # fmt: skip
    return ChatRequest(
        **common, messages=messages, tools=answer.tools, logprobs=logprobs is not None, rendering=rendering,
        includes_reasoning=boolean("include_reasoning", fields.get("include_reasoning", True)),
        prediction=prediction,
    )  # fmt: skip


def listed_messages(messages: Any) -> list[Any]:
    """Return `messages` if it is a list of an allowed length; ChatMessages.parse checks each message."""
    if not isinstance(messages, list):
        raise invalid_param("messages", f"must be a list of messages, got {type(messages).__name__}")
    if not 0 < len(messages) <= MAX_MESSAGES:
        raise invalid_param("messages", f"must have 1 to {MAX_MESSAGES} messages, got {len(messages)}")
    return messages


def _prediction(value: Any) -> tuple[str | None, list[str]]:
    """Return the text of a prediction, None without one, and the names of its members without effect."""
    if value is None:
        return None, []
    if not isinstance(value, dict):
        raise invalid_param("prediction", f"must be an object, got {type(value).__name__}")
    if (kind := value.get("type")) != "content":
        raise invalid_param("prediction.type", f"must be 'content', got {format_short(kind)}")
    unread = [f"prediction.{name}" for name in value if name not in ("type", "content")]
    return flat_content(value.get("content"), "prediction.content"), unread


def _check_modalities(fields: Mapping[str, Any]) -> None:
    for modality in as_tuple("modalities", fields.get("modalities"), MAX_MODALITIES, str):
        if modality != "text":
            raise invalid_param("modalities", f"must be text, the only supported output, got {format_short(modality)}")


def _take_logprobs(fields: dict[str, Any]) -> int | None:
    """Take out the fields on logprobs; return the number of likeliest tokens, None where no logprobs are wanted."""
    has_logprobs = boolean("logprobs", fields.pop("logprobs", False))
    top = fields.pop("top_logprobs", None)
    if top is not None:
        top = integer("top_logprobs", top, 0, MAX_TOP_LOGPROBS)
        if top and not has_logprobs:
            raise invalid_param("top_logprobs", "needs logprobs to be true")
    return (top or 0) if has_logprobs else None


def _unite_output_limits(fields: dict[str, Any]) -> None:
    """Make `max_tokens` of both its names; the newer one wins. None is as many as fit."""
    limits = {name: fields.pop(name) for name in ("max_tokens", "max_completion_tokens") if name in fields}
    for name, max_tokens in limits.items():
        fields["max_tokens"] = None if max_tokens == AS_MANY_AS_FIT else integer(name, max_tokens, 1, MAX_TOKENS)
