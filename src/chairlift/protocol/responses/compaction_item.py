"""compaction_item and summary_of: the item that stands for a conversation, written and read.

OpenAI's servers encrypt what is in such an item, so no other server can read it. Ours has the text of the summary: any
replica can read it, also after a restart.
"""

import base64
import binascii

from chairlift.protocol.translation.base import Json

COMPACTION = "compaction"

COMPACTION_TYPES = (COMPACTION, "compaction_summary", "context_compaction")
"""Types under which clients send such an item."""

FORMAT = "chairlift1."
"""Beginning of the content of our own items; the rest is the summary in base64."""


def compaction_item(item_id: str, summary: str) -> Json:
    """Return the item that has a summary."""
    content = FORMAT + base64.b64encode(summary.encode()).decode()
    return {"id": item_id, "type": COMPACTION, "encrypted_content": content}


def summary_of(item: Json) -> str:
    """Return the summary in an item; "" for another server's item, and for one that is damaged."""
    content = item.get("encrypted_content")
    if item.get("type") not in COMPACTION_TYPES or not isinstance(content, str) or not content.startswith(FORMAT):
        return ""
    try:
        return base64.b64decode(content.removeprefix(FORMAT), validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
