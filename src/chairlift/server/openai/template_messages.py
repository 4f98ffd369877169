"""template_input: messages with tool calls in the form that chat templates of every format accept."""

import hashlib
import re
from functools import lru_cache
from typing import Any, NamedTuple

from chairlift.core.chat_template_names_and_limits import REASONING_FIELDS
from chairlift.server.openai.tool_choice import parsed_arguments
from chairlift.text.template_features import reads_tools, takes_system_messages
from chairlift.text.tool_formats.base import ToolFormat
from chairlift.text.tool_formats.generic_prompt import with_prompt, without_calls

_TAKES_TEXT_ARGUMENTS = re.compile(r"arguments\s+is\s+(not\s+)?(string|mapping)\b")
"""Test with which a template that takes arguments as objects and as text tells them apart."""

_TAKES_TEXT_OR_THINKING = re.compile(r"\bif message\.content and message\.thinking\b")
"""Test with which a template, GPT-OSS's, rejects a message that has both beside a call."""


class _EarlierCall(NamedTuple):
    """A call of an earlier message: its function, and its id as the template sees it."""

    name: str
    template_id: str


def template_input(
    messages: list[Any], tools: list[dict[str, Any]] | None, tool_format: ToolFormat, template: str
) -> tuple[list[Any], list[dict[str, Any]] | None]:
    """Return the messages and the tools as the chat template takes them; `messages` passed check_messages.

    The arguments of calls become objects; those that were cut off stay text, which is wrapped in an object unless the
    template takes text, too. A call without text has an empty one. A result has its function's name. A template that
    does not know the role `developer` gets `system`. One that takes either text or thinking beside a call gets both
    as thinking. Ids have the form that the template demands. A template without a format of tool calls gets no tools:
    a message explains them, and calls and results are text, also where no tool may be called.
    """
    calls: dict[str, _EarlierCall] = {}
    parsed = [_completed(message, calls, tool_format) for message in parsed_arguments(messages)]
    if "developer" not in template and takes_system_messages(template):
        parsed = [_with_role(message, "developer", "system") for message in parsed]
    if _takes_text_or_thinking(template):
        parsed = [_with_text_in_thinking(message) for message in parsed]
    if not tool_format.is_generic and not _takes_text_arguments(template):
        parsed = [_with_object_arguments(message) for message in parsed]
    if not tool_format.is_generic or not all(isinstance(message, dict) for message in parsed):
        return parsed, tools
    if tools is None:
        return parsed if reads_tools(template) else without_calls(parsed), None
    return with_prompt(parsed, tools, has_system_role=takes_system_messages(template)), None


@lru_cache(maxsize=16)
def _takes_text_arguments(template: str) -> bool:
    return _TAKES_TEXT_ARGUMENTS.search(template) is not None


@lru_cache(maxsize=16)
def _takes_text_or_thinking(template: str) -> bool:
    return _TAKES_TEXT_OR_THINKING.search(template) is not None


def _completed(message: Any, known: dict[str, _EarlierCall], tool_format: ToolFormat) -> Any:
    """Return a message with what templates read; `known` maps ids to the calls so far."""
    if not isinstance(message, dict):
        return message
    if message.get("role") == "tool" and (call := known.get(message.get("tool_call_id", ""))) is not None:
        name = message.get("name")
        return {**message, "name": call.name if name is None else name, "tool_call_id": call.template_id}
    calls = message.get("tool_calls")
    if message.get("role") != "assistant" or not isinstance(calls, list) or not calls:
        return message
    for call in calls:
        name = call["function"]["name"]
        known[call["id"]] = _EarlierCall(name, _template_id(call["id"], name, len(known), tool_format))
    content = message.get("content")
    return {
        **message,
        "content": "" if content is None else content,
        "tool_calls": [{**call, "id": known[call["id"]].template_id} for call in calls],
    }


def _with_role(message: Any, role: str, other: str) -> Any:
    return {**message, "role": other} if isinstance(message, dict) and message.get("role") == role else message


def _with_text_in_thinking(message: Any) -> Any:
    """Return a message with calls whose text, if it has thinking, too, stands behind the thinking."""
    if not isinstance(message, dict) or message.get("role") != "assistant" or not message.get("tool_calls"):
        return message
    thinking, content = next((message[key] for key in REASONING_FIELDS if message.get(key)), ""), message.get("content")
    texts = [part.get("text") for part in content] if isinstance(content, list) else [content]
    if not thinking or not all(isinstance(text, str) for text in (thinking, *texts)) or not any(texts):
        return message
    both = "\n\n".join([thinking, *filter(None, texts)])
    return {**message, "content": "", **{key: both for key in REASONING_FIELDS if key in message}}


def _with_object_arguments(message: Any) -> Any:
    """Return a message whose calls all have objects as arguments."""
    calls = message.get("tool_calls") if isinstance(message, dict) and message.get("role") == "assistant" else None
    if not isinstance(calls, list) or all(isinstance(call["function"]["arguments"], dict) for call in calls):
        return message
    wrapped = []
    for call in calls:
        arguments = call["function"]["arguments"]
        arguments = {"arguments": arguments} if isinstance(arguments, str) else arguments
        wrapped.append({**call, "function": {**call["function"], "arguments": arguments}})
    return {**message, "tool_calls": wrapped}


def _template_id(call_id: str, name: str, index: int, tool_format: ToolFormat) -> str:
    """Return the id of a call in the form that the template demands."""
    if tool_format.has_named_ids:
        return f"functions.{name}:{index}"
    num_chars = tool_format.num_id_chars
    if not num_chars or (len(call_id) == num_chars and call_id.isascii() and call_id.isalnum()):
        return call_id
    return hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[:num_chars]
