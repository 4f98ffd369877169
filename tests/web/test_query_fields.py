"""query_fields and its readers: the last value counts; what is no number or order is rejected."""

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.web.query_fields import MAX_QUERY_FIELDS, query_fields, query_limit, query_order


def test_fields_are_decoded_and_the_last_value_counts() -> None:
    assert query_fields({"query_string": b"a=1&b=%C3%A9&a=2&c="}) == {"a": "2", "b": "é", "c": ""}
    assert query_fields({}) == {}
    with pytest.raises(InvalidRequest, match=f"more than {MAX_QUERY_FIELDS} fields"):
        query_fields({"query_string": b"&".join([b"a=1"] * (MAX_QUERY_FIELDS + 1))})


def test_orders_and_limits() -> None:
    assert (query_order({}), query_order({"order": "asc"})) == ("desc", "asc")
    assert (query_limit({}, 20, 100), query_limit({"limit": "100"}, 20, 100)) == (20, 100)
    for value in ("0", "101", "1000", "x", "", "-1", "1.5", "²", "９"):
        with pytest.raises(InvalidRequest, match="limit must be an integer of 1 to 100"):
            query_limit({"limit": value}, 20, 100)
    with pytest.raises(InvalidRequest, match="order must be asc or desc"):
        query_order({"order": ""})
