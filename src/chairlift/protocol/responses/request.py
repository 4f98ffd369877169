"""read_response_request: a body of /v1/responses as one of /v1/chat/completions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chairlift.core.validation import boolean, integer, invalid_param, string
from chairlift.protocol.field_check import format_short, split_fields
from chairlift.protocol.metadata import read_metadata
from chairlift.protocol.plain_choice import allows_one_call
from chairlift.protocol.request_fields import MAX_TOP_LOGPROBS, Field
from chairlift.protocol.responses.compaction_item import TRIGGER, without_compacted
from chairlift.protocol.responses.compaction_request_fields import TRIGGERED
from chairlift.protocol.responses.conversation_reader import PREVIOUS, ConversationReader
from chairlift.protocol.responses.input_items import MessageList, tools_of_items
from chairlift.protocol.responses.response_store import ResponseStore
from chairlift.protocol.responses.response_tools import FUNCTION, OwnName, ResponseTools
from chairlift.protocol.responses.responses_request_fields import (
    LOGPROBS,
    MAX_ID_CHARS,
    MAX_INCLUDED,
    RESPONSES,
    SAME_FIELDS,
)
from chairlift.protocol.translation.base import FieldNames, Json

FIELD_NAMES = {
    "max_completion_tokens": "max_output_tokens", "max_tokens": "max_output_tokens", "messages": "input",
    "prompt": "input", "response_format": "text.format", "reasoning_effort": "reasoning.effort",
    "top_logprobs": "top_logprobs", "logprobs": "include",
}  # fmt: skip
"""Field of chat completions -> what it is called in a request for a response."""

TOOL_MEMBERS = {".function": "", ".custom": ""}
MESSAGE_MEMBERS = {".tool_call_id": ".call_id"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRequest:
    """A request of /v1/responses.

    Attributes:
        chat: body of /v1/chat/completions.
        ignored: names of fields without effect.
        names: what the fields of `chat` are called in the request.
        items: the items of `input`, with those that references name.
        earlier_items: the items of the stored conversation before them.
        wants_compaction: whether the input ends with a trigger, which `items` lacks, so that a summary is wanted.
        echoed: fields that the response repeats.
        is_stored: whether the response is to be stored.
        own_tool_name: returns what the response calls a tool of `chat`.
    """

    chat: Json
    ignored: tuple[str, ...]
    names: FieldNames
    items: list[Json]
    echoed: Json
    is_stored: bool
    own_tool_name: Callable[[str], OwnName] = OwnName
    earlier_items: list[Json] = field(default_factory=list)
    wants_compaction: bool = False


def read_response_request(
    body: Mapping[str, Any], store: ResponseStore, tenant: str, table: Mapping[str, Field] = RESPONSES
) -> ResponseRequest:  # fmt: skip
    """Translate a body; `store` has the responses that it may refer to, `table` the fields that it may have.

    Raises InvalidRequest and NotFound.
    """
    wants_compaction = _ends_with_trigger(body.get("input"))
    if wants_compaction and table is RESPONSES:
        table = TRIGGERED
    fields, ignored_fields = split_fields(body, table)
    reader = ConversationReader(store, tenant)
    previous_id, earlier = fields.get(PREVIOUS), list[Json]()
    if previous_id is not None:
        earlier = without_compacted(reader.conversation(string(PREVIOUS, previous_id, MAX_ID_CHARS)))
    sent = fields.get("input", [])
    items = reader.resolve(_input_items(sent), "input")
    items = items[:-1] if wants_compaction else items
    of_items = [*((tools, PREVIOUS) for tools, _ in tools_of_items(earlier, "")), *tools_of_items(items, "input")]
    tools = ResponseTools.read(fields.get("tools"), of_items)
    ignored, messages = [*ignored_fields, *tools.left_out], MessageList(tools.chat_name)
    if table is not RESPONSES and fields.get("tools") and not tools.own_names:
        ignored.append("tools")  # a summary needs them only for the names of calls
    instructions = fields.get("instructions")
    if instructions is not None:
        if not isinstance(instructions, str):
            raise invalid_param("instructions", f"must be a string, got {format_short(instructions)}")
        messages.add_message("system", instructions, "instructions")
    places = ["input"] if isinstance(sent, str) else [f"input[{index}]" for index in range(len(items))]
    messages.add_items([*earlier, *items], [*([PREVIOUS] * len(earlier)), *places])
    messages.finish()
    ignored += messages.left_out.names
    chat: Json = {"model": fields.get("model", ""), "messages": messages.messages}
    chat |= {name: fields[name] for name in SAME_FIELDS if name in fields}
    stream = boolean("stream", fields.get("stream", False))
    if stream:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    if "max_output_tokens" in fields:
        chat["max_completion_tokens"] = fields["max_output_tokens"]
    if tools.chat:
        chat["tools"] = tools.chat
    chat |= {"parallel_tool_calls": False} if allows_one_call(fields.get("tool_choice")) else {}
    if "tool_choice" in fields:
        if (choice := tools.chat_choice(fields["tool_choice"])) is None:
            ignored.append("tool_choice")
        else:
            chat["tool_choice"] = choice
    chat |= _text_format(fields.get("text"), ignored) | _reasoning(fields.get("reasoning"), ignored)
    chat |= _logprobs(fields, ignored)
    return ResponseRequest(
        chat=chat, ignored=tuple(ignored), items=items,
        names=FieldNames(
            FIELD_NAMES, messages.places, MESSAGE_MEMBERS, tools.places, TOOL_MEMBERS, messages.paths,
        ),
        echoed=_echoed(fields, read_metadata(fields.get("metadata"))),
        is_stored=boolean("store", fields.get("store", True)) and store.is_enabled, own_tool_name=tools.own_name,
        earlier_items=earlier, wants_compaction=wants_compaction,
    )  # fmt: skip


def _ends_with_trigger(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[-1], dict) and value[-1].get("type") == TRIGGER


def _input_items(value: Any) -> list[Json]:
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list):
        raise invalid_param("input", f"must be a text or a list of items, got {format_short(value)}")
    return value


def _text_format(text: Any, ignored: list[str]) -> Json:
    if text is None:
        return {}
    if not isinstance(text, dict):
        raise invalid_param("text", f"must be an object, got {format_short(text)}")
    ignored += [f"text.{name}" for name, value in text.items() if name != "format" and value is not None]
    form = text.get("format")
    if form is None:
        return {}
    if not isinstance(form, dict) or form.get("type") not in ("text", "json_object", "json_schema"):
        raise invalid_param("text.format", "must be an object with the type text, json_object or json_schema")
    if form["type"] != "json_schema":
        return {"response_format": {"type": form["type"]}}
    if not isinstance(form.get("schema"), dict):
        raise invalid_param("text.format.schema", f"must be an object, got {format_short(form.get('schema'))}")
    described = {name: value for name, value in form.items() if name != "type"}
    return {"response_format": {"type": "json_schema", "json_schema": described}}


def _reasoning(reasoning: Any, ignored: list[str]) -> Json:
    if reasoning is None:
        return {}
    if not isinstance(reasoning, dict):
        raise invalid_param("reasoning", f"must be an object, got {format_short(reasoning)}")
    ignored += [f"reasoning.{name}" for name, value in reasoning.items() if name != "effort" and value is not None]
    return {} if reasoning.get("effort") is None else {"reasoning_effort": reasoning["effort"]}


def _logprobs(fields: Mapping[str, Any], ignored: list[str]) -> Json:
    has_logprobs, top = _includes_logprobs(fields.get("include"), ignored), fields.get("top_logprobs")
    if top is not None:
        top = integer("top_logprobs", top, 0, MAX_TOP_LOGPROBS)
    if not (has_logprobs or top):
        return {}
    return {"logprobs": True} if top is None else {"logprobs": True, "top_logprobs": top}


def _includes_logprobs(include: Any, ignored: list[str]) -> bool:
    if include is None:
        return False
    if not isinstance(include, list) or not all(isinstance(each, str) for each in include):
        raise invalid_param("include", f"must be a list of strings, got {format_short(include)}")
    if len(include) > MAX_INCLUDED:
        raise invalid_param("include", f"has {len(include)} entries, the limit is {MAX_INCLUDED}")
    ignored += [f"include.{each}" for each in include if each != LOGPROBS]
    return LOGPROBS in include


def _echoed(fields: Mapping[str, Any], metadata: Mapping[str, str]) -> Json:
    """Return the fields of a response that repeat those of its request."""
    text: Json = fields.get("text") or {}
    reasoning: Json = fields.get("reasoning") or {}
    tools: Sequence[Json] = fields.get("tools") or ()
    return {
        "instructions": fields.get("instructions"), "max_output_tokens": fields.get("max_output_tokens"),
        "metadata": metadata, "parallel_tool_calls": fields.get("parallel_tool_calls", True),
        "previous_response_id": fields.get(PREVIOUS),
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "temperature": fields.get("temperature"), "top_p": fields.get("top_p"),
        "text": {"format": text.get("format") or {"type": "text"}},
        "tool_choice": fields.get("tool_choice", "auto"),
        "tools": [_echoed_tool(tool) for tool in tools],
        "top_logprobs": fields.get("top_logprobs"), "truncation": "disabled", "user": fields.get("user"),
        "background": False,
    }  # fmt: skip


def _echoed_tool(tool: Json) -> Json:
    """Return a tool with the members that the published type of a function requires."""
    if tool.get("type") not in (None, FUNCTION):
        return tool
    return {"parameters": None, "strict": None, **tool, "type": FUNCTION}
