"""published_item: an item of an input in the form that the types of OpenAI's SDKs have.

content "a", null, ["a"], [{"type": "text", "text": "a"}]  ──>  a list of input_text or output_text parts
arguments {"a": 1}, null                                   ──>  a text
output {"a": 1}, null                                      ──>  a text, or a list of input_text parts
"""

from typing import Any

import orjson

from chairlift.core.chat_template_names_and_limits import TEXT_PARTS
from chairlift.protocol.responses.compaction_item import COMPACTION_TYPES
from chairlift.protocol.responses.input_items import result_content
from chairlift.protocol.responses.responses_request_fields import ADDITIONAL_TOOLS, MESSAGE, item_type
from chairlift.protocol.translation.base import Json

INPUT_TEXT, OUTPUT_TEXT = "input_text", "output_text"

_WITHOUT_STATUS = (ADDITIONAL_TOOLS, *COMPACTION_TYPES)


def published_item(item: Json, item_id: str) -> Json:
    """Return an item in its published form, without members that are null.

    `item_id` is its id if it has no text as one. Values that no message could be made of stay as they are.
    """
    published = {"type": MESSAGE, "id": item_id, **_without_nulls(item)}
    if not isinstance(published["id"], str):
        published["id"] = item_id
    if published["type"] not in _WITHOUT_STATUS:
        published.setdefault("status", "completed")
    match item_type(item) or MESSAGE:
        case "message":
            kind = OUTPUT_TEXT if item.get("role") == "assistant" else INPUT_TEXT
            published["content"] = _parts(item.get("content"), kind)
        case "function_call":
            published["arguments"] = _arguments(item.get("arguments"))
        case "function_call_output" | "custom_tool_call_output":
            output = result_content(item.get("output"))
            published["output"] = _parts(output, INPUT_TEXT) if isinstance(output, list) else output or ""
        case "reasoning":
            published["summary"] = _typed(item.get("summary") or [], "summary_text")
            if "content" in published:
                published["content"] = _typed(published["content"], "reasoning_text")
    return published


def _without_nulls(value: Json) -> Json:
    return {name: member for name, member in value.items() if member is not None}


def _parts(content: Any, kind: str) -> Any:
    """Return a content as a list of parts, those of texts with one type."""
    if content is None:
        return []
    parts = [content] if isinstance(content, str) else content
    return [_part(part, kind) for part in parts] if isinstance(parts, list) else parts


def _part(part: Any, kind: str) -> Any:
    text = {"text": part} if isinstance(part, str) else part
    if not isinstance(text, dict):
        return part
    if not isinstance(part, str) and part.get("type") not in TEXT_PARTS:
        return _without_nulls(part)
    return {**({"annotations": []} if kind == OUTPUT_TEXT else {}), **_without_nulls(text), "type": kind}


def _typed(parts: Any, kind: str) -> Any:
    """Return the parts of reasoning with their type, which may be absent."""
    if not isinstance(parts, list):
        return parts
    return [{"type": kind, **_without_nulls(part)} if isinstance(part, dict) else part for part in parts]


def _arguments(arguments: Any) -> Any:
    if arguments is None:
        return "{}"
    return orjson.dumps(arguments).decode() if isinstance(arguments, dict) else arguments
