"""with_written_calls: calls of earlier answers as the text that the model writes, for templates that write no calls.

LFM2's templates write the text of an answer and the results of its calls, and nothing of the calls: the client has to
put the model's own text into the answer. Chairlift takes the calls out of that text, so it writes them again.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chairlift.text.chat_messages import ChatMessage, ToolCall
from chairlift.text.marker_stand_ins import with_stand_ins
from chairlift.text.tool_formats.base import NINE, NUMBER, SPACES, CallNotation, ToolFormat
from chairlift.text.tool_formats.generic_prompt import without_calls


def can_write_calls(tool_format: ToolFormat) -> bool:
    """Return whether calls in the notation of a format can stand in the text of an answer."""
    return _notation(tool_format) is not None


def with_written_calls(
    messages: Sequence[ChatMessage], tool_format: ToolFormat, *, writes_results: bool
) -> list[ChatMessage]:
    """Return the messages with the calls of each answer behind its text, in the notation of the format.

    `writes_results` says whether the template writes messages of the role tool; otherwise results become text of the
    user, as without_calls has them. Ids of calls have the form that the template demands.
    """
    notation = _notation(tool_format)
    assert notation is not None, "the caller has asked can_write_calls"
    num_calls = 0
    written: list[ChatMessage] = []
    for message in messages:
        if message.calls:
            text = _written(message.calls, notation, num_calls)
            num_calls += len(message.calls)
            content = "\n".join(filter(None, (message.content, text)))
            written.append(replace(message, calls=(), content=content))
        else:
            written.append(message)
    return written if writes_results else without_calls(written)


def _notation(tool_format: ToolFormat) -> CallNotation | None:
    """Return the notation of calls; None where it is unknown, or a call is a message of its own (GPT-OSS)."""
    found = tool_format.notation or next(iter(tool_format.auto_notations), None)
    return None if found is None or found.reasoning is not None else found


def _written(calls: Sequence[ToolCall], notation: CallNotation, num_before: int) -> str:
    space = "" if notation.argument_tags is None else "\n"

    def text_of(part: str, number: int = 0, call_id: str = "") -> str:
        for sign in ":,":
            part = part.replace(f"{SPACES}{sign}{SPACES}", f"{sign} ")
        filled = part.replace(SPACES, space).replace(NUMBER, str(number)).replace(NINE, call_id)
        return with_stand_ins(filled)

    parts = []
    for number, call in enumerate(calls, num_before):
        before, after = text_of(notation.before_name), text_of(notation.after_name, number, call.id)
        arguments = call.arguments if isinstance(call.arguments, Mapping) else {"arguments": call.arguments}
        parts.append(f"{before}{call.name}{after}{_arguments(arguments, notation)}{text_of(notation.after_arguments)}")
    separator = text_of(notation.separator or "\n")
    return f"{text_of(notation.begin)}{separator.join(parts)}{text_of(notation.end)}"


def _arguments(arguments: Mapping[str, Any], notation: CallNotation) -> str:
    if (tags := notation.argument_tags) is not None:
        before, after, end = (
            with_stand_ins(text.replace(SPACES, "\n")) for text in (tags.before_key, tags.after_key, tags.end)
        )
        return "".join(f"{before}{key}{after}{_tagged(value)}{end}" for key, value in arguments.items())
    if (keywords := notation.keyword_arguments) is None:
        return _json(arguments)
    quote = with_stand_ins(keywords.quote)
    return keywords.separator.join(
        f"{key}{keywords.after_key}{f'{quote}{value}{quote}' if quote and isinstance(value, str) else _json(value)}"
        for key, value in arguments.items()
    )


def _tagged(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
