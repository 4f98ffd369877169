"""page: it shows every route and field as text, and loads nothing."""

from html.parser import HTMLParser

import pytest

from chairlift.protocol.openapi import Schema
from chairlift.protocol.openapi_page import page
from chairlift.protocol.request_fields import CHAT, COMPLETION
from chairlift.protocol.router_and_fleet_openapi import document as router_document
from chairlift.server.openapi import document as server_document


class PageParser(HTMLParser):
    """Collects the addresses that a page would load, its tags and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_what_the_page_shows_is_text() -> None:
    operation = {
        "info": {"version": "<b>1</b>"},
        "paths": {"/<i>": {"get": {"summary": "<script>x</script>", "requestBody": {"content": {"application/json": {
            "schema": {"properties": {"<img>": {"description": "<a href=x>"}}}}}}}}},
    }  # fmt: skip
    parser = PageParser()
    parser.feed(page(operation))
    assert parser.loads == ["/openapi.json"] and not parser.tags & {"b", "i", "script", "img"}


@pytest.mark.parametrize("document", [server_document(), router_document()], ids=["server", "router"])
def test_the_page_names_every_route_and_field_and_loads_nothing(document: Schema) -> None:
    parser = PageParser()
    parser.feed(page(document))
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert f"{method.upper()} {path}" in parser.text and operation["summary"] in parser.text
    for field in (*CHAT, *COMPLETION):
        assert field in parser.text
    assert parser.loads == ["/openapi.json"]
    assert not parser.tags & {"script", "link", "img", "iframe", "object", "form"}
