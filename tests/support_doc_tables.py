"""Tables of the pages in docs/."""

import re

from support_source_tree import ROOT


def table(page: str, heading: str) -> list[list[str]]:
    """Return the rows of the first table under a heading of a page as their cells, without the head of the table."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    section = re.split(r"^#+ ", text.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]
