"""query_fields, query_limit, query_order: read the query of a request."""

from collections.abc import Mapping
from urllib.parse import parse_qs

from chairlift.core.errors import InvalidRequest
from chairlift.core.validation import invalid_param
from chairlift.web.body import Scope

MAX_QUERY_FIELDS = 100


def query_fields(scope: Scope) -> dict[str, str]:
    """Return the fields of a query, of a repeated one the last value. Raises InvalidRequest."""
    text = scope.get("query_string", b"").decode("latin-1")
    try:
        fields = parse_qs(text, keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS)
    except ValueError:
        raise InvalidRequest(f"the query has more than {MAX_QUERY_FIELDS} fields, which is the limit") from None
    return {name: values[-1] for name, values in fields.items()}


def query_order(query: Mapping[str, str]) -> str:
    """Return the order of a list, desc by default. Raises InvalidRequest."""
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid_param("order", "must be asc or desc")
    return order


def query_limit(query: Mapping[str, str], default: int, most: int) -> int:
    """Return how many entries of a list to send. Raises InvalidRequest."""
    limit = query.get("limit", str(default))
    is_number = limit.isascii() and limit.isdigit() and len(limit) <= len(str(most))
    if not is_number or not 0 < int(limit) <= most:
        raise invalid_param("limit", f"must be an integer of 1 to {most}")
    return int(limit)
