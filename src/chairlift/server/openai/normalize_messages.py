"""normalize_messages: brings a conversation, as clients echo it, into the form that chat templates take.

Clients send answers back as they got them, from this server and from others: with null content, a refusal, reasoning
in fields or parts, annotations, and keys of their own.
"""

from typing import Any

from chairlift.core.chat_template_names_and_limits import REASONING_FIELDS
from chairlift.core.validation import invalid_param
from chairlift.protocol.request_schemas import TEXT_PARTS

READ_KEYS = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "function_call", "refusal", *REASONING_FIELDS}
)
"""Keys of a message that the server or chat templates read."""

ANSWER_KEYS = frozenset({"annotations", "refusal"})
"""Keys of an answer that no chat template reads; the text of a refusal becomes the content."""

MAX_NAMED_KEYS = 64
"""Distinct keys without effect that are named in the response."""


def normalize_messages(messages: list[Any], template: str = "") -> tuple[list[Any], tuple[str, ...]]:
    """Return the messages, and the names of their keys that have no effect with this chat template.

    An answer has content, also where it was null, and its reasoning in `reasoning_content`. Entries that are no
    messages stay as they are. Raises InvalidRequest.
    """
    unread: dict[str, None] = {}
    result = [
        _normalized(message, f"messages[{index}]", unread) if isinstance(message, dict) else message
        for index, message in enumerate(messages)
    ]
    return result, tuple(f"messages.{name}" for name in unread if name not in template)


def _normalized(message: dict[str, Any], at: str, unread: dict[str, None]) -> dict[str, Any]:
    """Return one message without nulls; add its keys that are not read to `unread`."""
    is_answer = message.get("role") == "assistant"
    plain: dict[str, Any] = {}
    for key, value in message.items():
        if value is None and key != "content":
            continue
        if key not in READ_KEYS and key not in ANSWER_KEYS and len(unread) < MAX_NAMED_KEYS:
            unread[key] = None
        if key not in ANSWER_KEYS or not is_answer:
            plain[key] = value
    reasoning: list[str] = []
    if isinstance(plain.get("content"), list):
        parts = [(part, _text_part(part, is_answer=is_answer, reasoning=reasoning)) for part in plain["content"]]
        plain["content"] = [text_part for part, text_part in parts if text_part is not None or part is None]
    if not is_answer:
        return plain
    refusal = message.get("refusal")
    if not isinstance(refusal, str | None):
        raise invalid_param(f"{at}.refusal", f"must be a string or null, got {type(refusal).__name__}")
    content = plain.get("content")
    has_calls = bool(plain.get("tool_calls") or plain.get("function_call"))
    if content is None and (refusal or not has_calls):
        plain["content"] = refusal or ""
    if content in ("", []):
        plain["content"] = refusal or ""
    _set_reasoning(plain, reasoning, unread)
    return plain


def _text_part(part: Any, *, is_answer: bool, reasoning: list[str]) -> Any:
    """Return a content part as a part of type text, None for one of reasoning, whose text goes to `reasoning`.

    A part that is not known stays as it is, and the chat template rejects it by its place.
    """
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        return part
    if kind in TEXT_PARTS:
        return {"type": "text", "text": part.get("text")}
    if not is_answer:
        return part
    if kind == "refusal":
        return {"type": "text", "text": part.get("refusal")}
    if kind in ("thinking", "reasoning"):
        text = part.get(kind, part.get("text"))
        if isinstance(text, str):
            reasoning.append(text)
        return None
    return None if kind == "redacted_thinking" else part


def _set_reasoning(plain: dict[str, Any], parts: list[str], unread: dict[str, None]) -> None:
    """Set `reasoning_content` from the first field of reasoning, or else from the parts; others than text go."""
    for name in REASONING_FIELDS:
        if name in plain and not isinstance(plain[name], str):
            del plain[name]
            unread[name] = None
    text = next((plain[name] for name in REASONING_FIELDS if name in plain), "\n".join(parts))
    if text:
        plain["reasoning_content"] = text
