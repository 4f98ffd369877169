"""with_prompt, without_calls: the prompt of the generic format; messages with their calls as text."""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

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


def with_prompt(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, has_system_role: bool
) -> list[dict[str, Any]]:
    """Return the messages with the prompt in the first one, and with calls and their results as text.

    `has_system_role` says whether the template takes a system message; otherwise the user's first message has its text.
    """
    plain = without_calls(messages)
    prompt = prompt_of(tools)
    if not has_system_role:
        while plain and plain[0].get("role") in ("system", "developer"):
            prompt = _joined(prompt, plain.pop(0).get("content"))
    role = "system" if has_system_role else "user"
    first = plain[0] if plain else {}
    if first.get("role") == role or (has_system_role and first.get("role") == "developer"):
        return [{**first, "content": _joined(prompt, first.get("content"))}, *plain[1:]]
    return [{"role": role, "content": prompt}, *plain]


def without_calls(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with calls and their results as text.

    A template that knows no tools knows neither `tool_calls` nor the role `tool`. Results that follow one another are
    one message of the user, which is joined with the user's message before or after it: many templates reject two
    messages of one role in a row.
    """
    plain: list[dict[str, Any]] = []
    has_results = False  # whether the last message has results
    for run_of_role, group in itertools.groupby(messages, key=lambda message: message.get("role")):
        run = list(group)
        if run_of_role == "tool":
            results = [{"tool_call_id": each.get("tool_call_id"), "content": each.get("content")} for each in run]
            run = [{"role": "user", "content": json.dumps({TOOL_RESULTS: results}, ensure_ascii=False)}]
        is_user = run[0].get("role") == "user"
        if is_user and plain and plain[-1]["role"] == "user" and (run_of_role == "tool" or has_results):
            plain[-1] = {**plain[-1], "content": _joined(plain[-1].get("content"), run.pop(0).get("content"))}
        plain += map(_without_calls, run)
        has_results = run_of_role == "tool"
    return plain


def _without_calls(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with its calls as the text that the model wrote, after its other text."""
    calls = message.get("tool_calls")
    if message.get("role") != "assistant" or not isinstance(calls, list) or not calls:
        return dict(message)
    written = {TOOL_CALLS: [{key: call["function"][key] for key in ("name", "arguments")} for call in calls]}
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": _joined(message.get("content"), json.dumps(written, ensure_ascii=False))}


def _joined(first: Any, second: Any) -> Any:
    """Return two contents as one; a content is text or a list of parts. The template rejects any other one."""
    texts = [each for each in (first, second) if each is not None and each != ""]
    if all(isinstance(each, str) for each in texts):
        return "\n\n".join(texts)
    return [part for each in texts for part in _parts(each)]


def _parts(content: Any) -> list[Any]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content} if isinstance(content, str) else content]
