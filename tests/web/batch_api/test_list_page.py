"""list_page: pages in both orders, without a gap and without an entry twice."""

from typing import Any

import pytest

from chairlift.core.errors import InvalidRequest
from chairlift.web.batch_api.list_page import list_page

OBJECTS = [{"id": str(number)} for number in range(5)]


def page(query: str, objects: list[dict[str, Any]] = OBJECTS) -> dict[str, Any]:
    return list_page({"query_string": query.encode()}, objects, 2, 4)


@pytest.mark.parametrize(("order", "ids"), [("", "43210"), ("order=asc&", "01234"), ("order=desc&", "43210")])
def test_pages_follow_each_other(order: str, ids: str) -> None:
    found, after = "", ""
    while True:
        each = page(f"{order}after={after}")
        found += "".join(entry["id"] for entry in each["data"])
        after = each["last_id"]
        assert each["first_id"] == each["data"][0]["id"] and len(each["data"]) <= 2
        if not each["has_more"]:
            break
    assert found == ids
    assert [entry["id"] for entry in page(f"{order}limit=4")["data"]] == list(ids[:4])


def test_an_empty_list() -> None:
    assert page("", []) == {"object": "list", "data": [], "has_more": False, "first_id": None, "last_id": None}


@pytest.mark.parametrize("query", ["limit=0", "limit=5", "limit=x", "limit=", "order=x", "after=9", "limit=-1"])
def test_bad_queries(query: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        page(query)
    assert error.value.details["param"] == query.partition("=")[0]
