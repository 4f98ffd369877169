"""template_input: messages with tool calls in the form that chat templates of every format accept."""

import hashlib
from typing import Any, NamedTuple

from chairlift.server.openai.tool_choice import parsed_arguments
from chairlift.text.tool_formats.base import ToolFormat
from chairlift.text.tool_formats.detect import takes_system_messages
from chairlift.text.tool_formats.generic import with_prompt


class _Call(NamedTuple):
    """A call of an earlier message: its function, and its id as the template sees it."""

    name: str
    template_id: str


def template_input(
    messages: list[Any], tools: list[dict[str, Any]] | None, tool_format: ToolFormat, template: str
) -> tuple[list[Any], list[dict[str, Any]] | None]:
    """Return the messages and the tools as the chat template takes them; `messages` passed check_messages.

    The arguments of calls become objects, and a call without text has an empty one. A result has its function's name.
    Ids have the form that the template demands. A template without a format of tool calls gets no tools: a message
    explains them.
    """
    calls: dict[str, _Call] = {}
    parsed = [_completed(message, calls, tool_format) for message in parsed_arguments(messages)]
    if tools is None or not tool_format.is_generic or not all(isinstance(message, dict) for message in parsed):
        return parsed, tools
    return with_prompt(parsed, tools, has_system_role=takes_system_messages(template)), None


def _completed(message: Any, known: dict[str, _Call], tool_format: ToolFormat) -> Any:
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
        known[call["id"]] = _Call(name, _template_id(call["id"], name, len(known), tool_format))
    content = message.get("content")
    return {
        **message,
        "content": "" if content is None else content,
        "tool_calls": [{**call, "id": known[call["id"]].template_id} for call in calls],
    }


def _template_id(call_id: str, name: str, index: int, tool_format: ToolFormat) -> str:
    """Return the id of a call in the form that the template demands."""
    if tool_format.has_named_ids:
        return f"functions.{name}:{index}"
    num_chars = tool_format.num_id_chars
    if not num_chars or (len(call_id) == num_chars and call_id.isascii() and call_id.isalnum()):
        return call_id
    return hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[:num_chars]
