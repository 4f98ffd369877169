"""Tests of page."""

from html.parser import HTMLParser

from chairlift.protocol.openapi_page import page


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
