"""prompt_of, without_calls: the prompt of the generic format; messages with their calls as text."""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chairlift.text.chat_messages import ChatMessage
from chairlift.text.tool_formats.generic import TOOL_CALLS, TOOL_RESULTS

_PROMPT = """You can call functions. This JSON describes each of them:

%s

Your whole answer is one JSON object. To call one or more functions, write
{"tool_calls": [{"name": "name of the function", "arguments": {"name of the argument": "its value"}}]}
To answer the user without a call, write
{"response": "your answer"}
The results of your calls come back as {"tool_results": [{"tool_call_id": "...", "content": "..."}]}."""


def prompt_of(tools: Sequence[Mapping[str, Any]]) -> str:
    """Return the text that explains the tools and the form of an answer."""
    return _PROMPT % json.dumps([tool["function"] for tool in tools], ensure_ascii=False)


def without_calls(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the messages with calls and their results as text.

    A template that knows no tools knows neither `tool_calls` nor the role `tool`. Results that follow one another are
    one message of the user, which is joined with the user's message before or after it: many templates reject two
    messages of one role in a row.
    """
    plain: list[ChatMessage] = []
    has_results = False  # whether the last message has results
    for role, group in itertools.groupby(messages, key=lambda message: message.role):
        run = list(group)
        if role == "tool":
            results = [{"tool_call_id": each.call_id, "content": each.content} for each in run]
            run = [ChatMessage(role="user", content=json.dumps({TOOL_RESULTS: results}, ensure_ascii=False))]
        if run[0].role == "user" and plain and plain[-1].role == "user" and (role == "tool" or has_results):
            plain[-1] = plain[-1].with_text(run.pop(0).content)
        plain += map(_without_calls, run)
        has_results = role == "tool"
    return plain


def _without_calls(message: ChatMessage) -> ChatMessage:
    """Return a message with its calls as the text that the model wrote, after its other text."""
    if not message.calls:
        return message
    written = {TOOL_CALLS: [{"name": call.name, "arguments": call.arguments} for call in message.calls]}
    return replace(message, calls=()).with_text(json.dumps(written, ensure_ascii=False))
