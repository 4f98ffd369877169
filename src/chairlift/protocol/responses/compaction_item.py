"""compaction_item, summary_of, without_compacted and others: the item that stands for a conversation.

OpenAI's servers encrypt what is in such an item, so no other server can read it. Ours has the text of the summary: any
replica can read it, also after a restart.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Any

from chairlift.protocol.responses.responses_request_fields import ADDITIONAL_TOOLS, MESSAGE, TOOL_ITEMS, item_type
from chairlift.protocol.translation.base import Json

COMPACTION, TRIGGER = "compaction", "compaction_trigger"
"""Types of the item, and of the last item of a request for a response that asks for one."""

COMPACTION_TYPES = (COMPACTION, "compaction_summary", "context_compaction")
"""Types under which clients send such an item."""

FORMAT = "chairlift1."
"""Beginning of the content of our own items; the rest is the summary in base64."""


def compaction_item(item_id: str, summary: str) -> Json:
    """Return the item that has a summary."""
    content = FORMAT + base64.b64encode(summary.encode()).decode()
    return {"id": item_id, "type": COMPACTION, "encrypted_content": content}


def is_kept(item: Json) -> bool:
    """Return whether an item stays beside every summary: what the user has said, and instructions."""
    return item_type(item) == MESSAGE and item.get("role") in ("user", "developer", "system")


def open_calls(items: Sequence[Json]) -> list[int]:
    """Return the indices of the calls whose result is not among the items, because it may follow."""
    found: dict[str, int] = {}
    for index, item in enumerate(items):
        kind, call_id = item.get("type"), item.get("call_id")
        if isinstance(kind, str) and isinstance(call_id, str):
            if kind.endswith("_call"):
                found[call_id] = index
            elif kind.endswith("_output"):
                found.pop(call_id, None)
    return sorted(found.values())


def kept_items(items: list[Json]) -> list[Json]:
    """Return what stays of items beside their summary.

    That is messages, calls without a result, and the tools for the rest of the conversation.
    """
    calls, kept = {*open_calls(items)}, list[Json]()
    for index, item in enumerate(items):
        if index in calls or is_kept(item):
            kept.append(item)
        elif item.get("type") in TOOL_ITEMS:
            kept.append({"type": ADDITIONAL_TOOLS, "role": "developer", "tools": item.get("tools")})
    return kept


def num_compacted(items: Sequence[Any]) -> int:
    """Return the number of items before the last of our compaction items, which stands for them."""
    return max((index for index, item in enumerate(items) if isinstance(item, dict) and summary_of(item)), default=0)


def without_compacted(items: list[Json]) -> list[Json]:
    """Return the items of a conversation without those for which the last of our compaction items stands."""
    num = num_compacted(items)
    return [*kept_items(items[:num]), *items[num:]]


def summary_of(item: Json) -> str:
    """Return the summary in an item; "" for another server's item, and for one that is damaged."""
    content = item.get("encrypted_content")
    if item.get("type") not in COMPACTION_TYPES or not isinstance(content, str) or not content.startswith(FORMAT):
        return ""
    try:
        return base64.b64decode(content.removeprefix(FORMAT), validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
