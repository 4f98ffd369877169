"""compaction_item, summary_of and without_compacted: the item that stands for a conversation, written and read.

OpenAI's servers encrypt what is in such an item, so no other server can read it. Ours has the text of the summary: any
replica can read it, also after a restart.
"""

import base64
import binascii

from chairlift.protocol.responses.responses_request_fields import MESSAGE, item_type
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
    """Return whether an item stays beside a summary: what the user has said, and instructions."""
    return item_type(item) == MESSAGE and item.get("role") in ("user", "developer", "system")


def without_compacted(items: list[Json]) -> list[Json]:
    """Return the items of a conversation without those for which the last of our compaction items stands."""
    place = max((index for index, item in enumerate(items) if summary_of(item)), default=0)
    return [*(item for item in items[:place] if is_kept(item)), *items[place:]]


def summary_of(item: Json) -> str:
    """Return the summary in an item; "" for another server's item, and for one that is damaged."""
    content = item.get("encrypted_content")
    if item.get("type") not in COMPACTION_TYPES or not isinstance(content, str) or not content.startswith(FORMAT):
        return ""
    try:
        return base64.b64decode(content.removeprefix(FORMAT), validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
