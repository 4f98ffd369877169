"""list_page: one page of a list of objects, as OpenAI's API sends it."""

from collections.abc import Sequence
from typing import Any

from chairlift.core.validation import invalid_param
from chairlift.web.body import Scope
from chairlift.web.query_fields import query_fields, query_limit, query_order


def list_page(scope: Scope, objects: Sequence[dict[str, Any]], default_limit: int, max_limit: int) -> dict[str, Any]:
    """Return the page that the query asks for by `order`, `after` and `limit`; `objects` begin with the oldest.

    Raises InvalidRequest.
    """
    query = query_fields(scope)
    listed = [*objects] if query_order(query) == "asc" else [*reversed(objects)]
    limit = query_limit(query, default_limit, max_limit)
    if after := query.get("after"):
        place = next((index for index, each in enumerate(listed) if each["id"] == after), None)
        if place is None:
            raise invalid_param("after", "names no entry of this list")
        listed = listed[place + 1 :]
    page = listed[:limit]
    return {
        "object": "list", "data": page, "has_more": len(listed) > len(page),
        "first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None,
    }  # fmt: skip
