"""block_text: the text of a content block that a model reads as text: text, documents and search results.

Title: Notes          the text of a document, and of a search result, has these lines before it
Source: notes.txt

Lunch is at noon.
"""

from typing import Any

from chairlift.core.errors import InvalidRequest
from chairlift.core.validation import invalid_param
from chairlift.protocol.field_check import format_short, string_member
from chairlift.protocol.translation.base import Json

TEXT_BLOCKS = ("text", "document", "search_result", "tool_reference")
"""Types of the blocks that have a text, for the user and for results of tools."""

MEDIA = ("image", "document")


def block_text(block: Json, at: str) -> str:
    """Return the text of a block of TEXT_BLOCKS. Raises InvalidRequest, also for a document that is no text."""
    match block["type"]:
        case "text":
            return string_member(block, "text", at)
        case "document":
            return _with_lines(_document_text(block, at), Title=block.get("title"), Context=block.get("context"))
        case "search_result":
            text = _parts_text(block.get("content"), f"{at}.content")
            return _with_lines(text, Title=block.get("title"), Source=block.get("source"))
        case _:
            return string_member(block, "tool_name", at)


def _document_text(block: Json, at: str) -> str:
    source = block.get("source")
    if not isinstance(source, dict):
        raise invalid_param(f"{at}.source", f"must be an object, got {format_short(source)}")
    match source.get("type"):
        case "text":
            return string_member(source, "data", f"{at}.source")
        case "content":
            return _parts_text(source.get("content"), f"{at}.source.content")
        case _:
            raise media_error("document", at)


def _parts_text(content: Any, at: str) -> str:
    """Return the text of a content of text blocks, which may be a string."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid_param(at, f"must be a string or a list of text blocks, got {format_short(content)}")
    texts = []
    for index, block in enumerate(content):
        part_at = f"{at}[{index}]"
        if not isinstance(block, dict):
            raise invalid_param(part_at, f"must be an object, got {format_short(block)}")
        if block.get("type") in MEDIA:
            raise media_error(block["type"], part_at)
        if block.get("type") != "text":
            raise invalid_param(f"{part_at}.type", f"must be text here, got {format_short(block.get('type'))}")
        texts.append(string_member(block, "text", part_at))
    return "\n".join(texts)


def media_error(kind: str, at: str) -> InvalidRequest:
    """Return the error of a block that has no text."""
    return invalid_param(at, f"is of type {kind}, and this server reads only text; send its text in a text block")


def _with_lines(text: str, **lines: Any) -> str:
    head = [f"{name}: {value}" for name, value in lines.items() if isinstance(value, str) and value]
    return "\n".join([*head, "", text]) if head else text
