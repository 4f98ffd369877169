"""The generated pages of docs/ say what the code declares."""

from reference_docs.pages import PAGES
from support_shares import for_each
from support_source_tree import ROOT


@for_each("name", PAGES)
def test_the_page_is_in_step(name: str) -> None:
    written = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert written == PAGES[name](), f"docs/{name} is not what the code says any more: `make docs` writes it again"
