"""template_input: a conversation and its tools as a chat template writes them without losing anything.

What the template writes itself stays as it is, so that the prompt is transformers'. The rest takes another form:

    instructions at the beginning    ──> one message; the user's first text where the template has no such role
    later instructions               ──> text of the user at their place
    calls and results                ──> text, where the template knows none: as the model writes it, if it has a format
    several calls of an answer       ──> an answer for each of them, with its result behind it
    a result behind other messages   ──> right behind its call, where the template wants it there
    a call that the user stopped     ──> a call with an empty result, likewise
    text beside calls                ──> see TextPlace
    two messages of a role in a row  ──> one message, where the template wants the roles to alternate
"""

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chairlift.text.call_result_order import with_empty_results, with_results_behind_calls, with_single_calls
from chairlift.text.call_text_place import with_text_at
from chairlift.text.chat_messages import ChatMessage, ChatMessages, ToolCall, joined, reasoning_parts
from chairlift.text.chat_template import ChatTemplate
from chairlift.text.template_abilities import TemplateAbilities
from chairlift.text.tool_formats.base import ToolFormat
from chairlift.text.tool_formats.generic_prompt import prompt_of, without_calls
from chairlift.text.written_calls import can_write_calls, with_written_calls

INSTRUCTIONS = ("system", "developer")
ANSWER, USER, RESULT = "assistant", "user", "tool"
Json = dict[str, Any]


def template_input(
    messages: ChatMessages, tools: Sequence[Json] | None, tool_format: ToolFormat, template: ChatTemplate
) -> tuple[list[Json], list[Json] | None]:
    """Return the messages and the tools that a chat template gets for a conversation.

    A template without a format of tool calls gets no tools: a message explains them, and calls and results are text.
    Ids of calls have the form that the template demands.
    """
    explained = tools if tools and tool_format.is_generic else None
    offered = None if not tools or tool_format.is_generic else [*map(_without_nulls, tools)]
    abilities = template.abilities(with_tools=bool(offered))
    prompt = "" if explained is None else prompt_of(explained)
    repaired = _with_instructions(messages.messages, prompt, abilities, has_tools=bool(offered))
    repaired = [_with_known_role(message, abilities) for message in repaired]
    if not abilities.repeated_answers:
        repaired = _with_joined_answers(repaired)
    has_user = any(message.role == USER for message in repaired)
    if not (abilities.first_answer and (has_user or abilities.lone_answers)):
        repaired = _with_first_user(repaired)
    if explained is not None or not abilities.calls:
        repaired = _with_text_of_calls(repaired, tool_format, abilities)
        if not abilities.repeated_answers:
            repaired = _with_joined_answers(repaired)
    else:
        repaired = _with_calls(repaired, tool_format, abilities)
    if offered and not abilities.bare_tools:
        offered = [*map(_with_description, offered)]
    return _as_json(_in_turns(repaired, abilities), abilities), offered


def _with_instructions(
    messages: Sequence[ChatMessage], prompt: str, abilities: TemplateAbilities, *, has_tools: bool
) -> list[ChatMessage]:  # fmt: skip
    """Return the messages with their first instructions, and `prompt` before them, in one message."""
    leading = [*itertools.takewhile(lambda message: message.role in INSTRUCTIONS, messages)]
    rest = [_later_instructions(message, abilities) for message in messages[len(leading) :]]
    if not leading and not prompt:
        return rest
    first = leading[0] if leading else ChatMessage(role=INSTRUCTIONS[0])
    written = {"system": abilities.system, "developer": abilities.developer}
    roles = [role for role in (first.role, *INSTRUCTIONS) if written[role]]
    text = joined(prompt, *(message.content for message in leading))
    is_kept = abilities.instructions_before_results or not (has_tools or _has_other_end(rest))
    if roles and is_kept and (abilities.lone_instructions or any(message.role == USER for message in rest)):
        return [replace(first, role=roles[0], content=text), *rest]
    if rest and rest[0].role == USER:
        return [replace(rest[0], content=joined(text, rest[0].content)), *rest[1:]]
    return [ChatMessage(role=USER, content=text), *rest]


def _has_other_end(messages: Sequence[ChatMessage]) -> bool:
    """Return whether the last message is no message of the user, or an earlier state of the conversation ended so."""
    return any(message.calls for message in messages) or (bool(messages) and messages[-1].role != USER)


def _later_instructions(message: ChatMessage, abilities: TemplateAbilities) -> ChatMessage:
    """Return a message behind others in a role that the template writes there: another one of instructions, or USER."""
    if message.role not in INSTRUCTIONS:
        return message
    written = {"system": abilities.later_system, "developer": abilities.later_developer}
    return replace(message, role=next((role for role in (message.role, *INSTRUCTIONS) if written[role]), USER))


def _with_known_role(message: ChatMessage, abilities: TemplateAbilities) -> ChatMessage:
    """Return a message of a role that few templates know as one of an answer or the user where this one does not."""
    if message.role in (*INSTRUCTIONS, USER, ANSWER, RESULT) or message.role in abilities.other_roles:
        return message
    return replace(message, role=ANSWER if message.role == "model" else USER)


def _with_joined_answers(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the messages with answers in a row as one answer, up to one with calls."""
    result: list[ChatMessage] = []
    for message in messages:
        last = result[-1] if result else None
        if last is not None and last.role == message.role == ANSWER and not last.calls:
            result[-1] = _joined(last, message)
        else:
            result.append(message)
    return result


def _with_first_user(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the messages with an empty one of the user before an answer that would be the first."""
    at = next((at for at, message in enumerate(messages) if message.role not in INSTRUCTIONS), len(messages))
    if at < len(messages) and messages[at].role == ANSWER:
        return [*messages[:at], ChatMessage(role=USER), *messages[at:]]
    return [*messages]


def _with_text_of_calls(
    messages: Sequence[ChatMessage], tool_format: ToolFormat, abilities: TemplateAbilities
) -> list[ChatMessage]:  # fmt: skip
    """Return the messages with calls as text: as the model writes them, or as the generic prompt explains them."""
    if tool_format.is_generic or not can_write_calls(tool_format):
        return without_calls(messages)
    ids = _template_ids(messages, tool_format)
    return with_written_calls(
        [_with_ids(message, ids) for message in messages], tool_format, writes_results=abilities.results
    )


def _with_calls(
    messages: Sequence[ChatMessage], tool_format: ToolFormat, abilities: TemplateAbilities
) -> list[ChatMessage]:  # fmt: skip
    """Return the messages with calls, results and the texts of calls as the template writes them."""
    ids = _template_ids(messages, tool_format)
    named = [_with_call_form(message, ids, abilities) for message in messages]
    if not abilities.late_results:
        named = with_results_behind_calls(named)
    if not abilities.several_calls:
        named = with_single_calls(named)
    if not abilities.users_after_calls:
        named = with_empty_results(named)
    last_answer = max((at for at, each in enumerate(named) if each.role == ANSWER and not each.calls), default=-1)
    result: list[ChatMessage] = []
    for at, message in enumerate(named):
        if message.calls and message.content:
            place = abilities.text_place(is_closed=at < last_answer, has_reasoning=bool(message.reasoning))
            result = with_text_at(place, result, message)
        else:
            result.append(message)
    return result


def _template_ids(messages: Sequence[ChatMessage], tool_format: ToolFormat) -> dict[str, str]:
    """Return the id of each call as the template sees it."""
    ids: dict[str, str] = {}
    for call in (call for message in messages for call in message.calls):
        ids[call.id] = _template_id(call.id, call.name, len(ids), tool_format)
    return ids


def _template_id(call_id: str, name: str, index: int, tool_format: ToolFormat) -> str:
    """Return the id of a call in the form that the template demands."""
    if tool_format.has_named_ids:
        return f"functions.{name}:{index}"
    num_chars = tool_format.num_id_chars
    if not num_chars or (len(call_id) == num_chars and call_id.isascii() and call_id.isalnum()):
        return call_id
    return hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[:num_chars]


def _with_call_form(message: ChatMessage, ids: Mapping[str, str], abilities: TemplateAbilities) -> ChatMessage:
    """Return a message whose calls have the ids and the form of arguments that the template takes."""
    calls = tuple(replace(call, arguments=_arguments(call, abilities)) for call in message.calls)
    return _with_ids(replace(message, calls=calls), ids)


def _with_ids(message: ChatMessage, ids: Mapping[str, str]) -> ChatMessage:
    """Return a message in which the ids of calls are those that the template sees."""
    calls = tuple(replace(call, id=ids[call.id]) for call in message.calls)
    return replace(message, calls=calls, call_id=ids.get(message.call_id, message.call_id))


def _arguments(call: ToolCall, abilities: TemplateAbilities) -> Mapping[str, Any] | str:
    """Return arguments as the template takes them; those that were cut off are text, or text within an object."""
    if isinstance(call.arguments, str):
        return call.arguments if abilities.text_arguments else {"arguments": call.arguments}
    return call.arguments if abilities.object_arguments else json.dumps(call.arguments, ensure_ascii=False)


def _in_turns(messages: Sequence[ChatMessage], abilities: TemplateAbilities) -> list[ChatMessage]:
    """Return the messages in an order of roles that the template writes."""
    result: list[ChatMessage] = []
    for at, message in enumerate(messages):
        last = result[-1] if result else None
        is_last = at == len(messages) - 1
        if message.role == ANSWER:
            is_empty = not (message.content or message.calls or message.reasoning)
            if is_empty and not is_last and not abilities.empty_answers:
                continue
        if message.role == USER and last is not None:
            if last.role == RESULT and not abilities.users_after_results:
                result[-1] = last.with_text(message.content)
                continue
            if last.role == USER and not abilities.repeated_users:
                result[-1] = _joined(last, message)
                continue
        result.append(message)
    return result


def _as_json(messages: Sequence[ChatMessage], abilities: TemplateAbilities) -> list[Json]:
    """Return the messages as the template reads them.

    Where it reads the reasoning of an answer from parts of its content alone, these take the place of its text, but not
    in the last message, whose text an output may continue.
    """
    written = [message.as_json() for message in messages]
    for at, message in enumerate(messages[:-1]):
        if message.role == ANSWER and message.reasoning and abilities.reasoning_parts:
            written[at]["content"] = reasoning_parts(message)
    return written


def _joined(first: ChatMessage, second: ChatMessage) -> ChatMessage:
    """Return two messages of one role as one."""
    return replace(
        second, content=joined(first.content, second.content), reasoning=joined(first.reasoning, second.reasoning),
        other={**first.other, **second.other},
    )  # fmt: skip


def _without_nulls(tool: Json) -> Json:
    """Return a tool without members of its function that are null."""
    return {**tool, "function": {name: value for name, value in tool["function"].items() if value is not None}}


def _with_description(tool: Json) -> Json:
    """Return a tool with a description and parameters, which may be empty."""
    empty = {"description": "", "parameters": {"type": "object", "properties": {}}}
    function = tool["function"]
    return {**tool, "function": {**function, **{name: function.get(name, value) for name, value in empty.items()}}}
