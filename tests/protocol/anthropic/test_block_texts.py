"""block_text: documents and search results that are text reach the model, others are errors that name them."""

from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.protocol.anthropic.block_texts import block_text
from support_shares import for_each

PART = {"type": "text", "text": "Lunch is at noon."}


def document(source: Any, **more: Any) -> dict[str, Any]:
    return {"type": "document", "source": source, **more}


PLAIN = {"type": "text", "media_type": "text/plain", "data": "Lunch is at noon."}


@for_each(("block", "text"), [
    (PART, "Lunch is at noon."), ({"type": "text", "text": ""}, ""),
    (document(PLAIN), "Lunch is at noon."),
    (document(PLAIN, title="Notes", context="Of today."), "Title: Notes\nContext: Of today.\n\nLunch is at noon."),
    (document(PLAIN, title=None, context="", citations={"enabled": True}), "Lunch is at noon."),
    (document({"type": "content", "content": "Lunch"}), "Lunch"),
    (document({"type": "content", "content": [PART, PART]}), "Lunch is at noon.\nLunch is at noon."),
    ({"type": "search_result", "source": "notes.txt", "title": "Notes", "content": [PART]},
     "Title: Notes\nSource: notes.txt\n\nLunch is at noon."),
    ({"type": "tool_reference", "tool_name": "read"}, "read"),
])  # fmt: skip
def test_texts(block: dict[str, Any], text: str) -> None:
    assert block_text(block, "at") == text


@for_each(("block", "param"), [
    ({"type": "text"}, "at.text"), ({"type": "document"}, "at.source"), (document({"type": "text"}), "at.source.data"),
    (document({"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}), "at"),
    (document({"type": "url", "url": "http://127.0.0.1/a.pdf"}), "at"),
    (document({"type": "file", "file_id": "f"}), "at"), (document({}), "at"),
    (document({"type": "content", "content": 7}), "at.source.content"),
    (document({"type": "content", "content": [{"type": "image"}]}), "at.source.content[0]"),
    (document({"type": "content", "content": [7]}), "at.source.content[0]"),
    ({"type": "search_result", "content": [{"type": "smell"}]}, "at.content[0].type"),
    ({"type": "search_result"}, "at.content"), ({"type": "tool_reference"}, "at.tool_name"),
])  # fmt: skip
def test_what_is_no_text_is_named(block: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        block_text(block, "at")
    assert caught.value.details["param"] == param
