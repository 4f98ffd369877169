"""What the documents say is there, is there; and what is there is in the documents."""

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import chairlift
from chairlift.server import openapi
from support_source_tree import PACKAGE, ROOT, SOURCES, shown

DOCS = tuple(sorted((ROOT / "docs").rglob("*.md")))
MAX_PROSE_CHARS = 120
MAX_README_LINES = 140
FIRST_SCREEN_LINES = 40
UNSAFE_KILL = re.compile(r"pkill|killall|pgrep(?! -P\b)")
"""Finds processes by a name, which a process of another user or program may have, too."""


def test_packages_md_describes_every_folder_and_module_once() -> None:
    page = (ROOT / "docs" / "packages.md").read_text(encoding="utf-8")
    modules = Counter(re.findall(r"^\| \[`\w+`\]\(\.\./(src/[\w/]+\.py)\)", page, flags=re.MULTILINE))
    assert modules == Counter(shown(path) for path in SOURCES if path.stem != "__init__")
    folders = Counter(re.findall(r"^##+ `([\w/]+)/`$", page, flags=re.MULTILINE))
    inner = {path.parent for path in SOURCES} - {PACKAGE}
    assert folders == Counter([PACKAGE.name, *(folder.relative_to(PACKAGE).as_posix() for folder in inner)])


def test_no_other_page_has_a_section_about_a_folder_of_the_package() -> None:
    folders = {path.parent.relative_to(PACKAGE).as_posix() for path in SOURCES} - {"."}
    named = {(page.name, name) for page in DOCS for name in folders if f"`{name}/`" in titles(page)}
    assert {page for page, _ in named} == {"packages.md"}


def test_no_page_has_a_heading_twice() -> None:
    pages = (ROOT / "README.md", *DOCS)
    repeated = [(shown(page), title) for page in pages for title, count in Counter(titles(page)).items() if count > 1]
    assert repeated == []


def test_every_module_that_a_page_names_by_its_path_exists() -> None:
    pages = [page for page in (ROOT / "README.md", *DOCS) if page.parent.name != "adr"]  # an ADR is about its time
    named = {
        (shown(page), name)
        for page in pages
        for name in re.findall(r"`((?:\w+/)+\w+\.py)`", page.read_text(encoding="utf-8"))
    }
    assert len(named) > 20
    assert [each for each in sorted(named) if not any((folder / each[1]).exists() for folder in (PACKAGE, ROOT))] == []


def test_the_readme_is_short_and_begins_with_the_two_commands() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MAX_README_LINES
    assert {"$ make serve", "$ make test"} <= set(lines[:FIRST_SCREEN_LINES])


def test_the_index_lists_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", index.read_text(encoding="utf-8")))
    assert linked == {page.name for page in DOCS if page.parent == index.parent and page != index}


def test_the_page_of_apis_lists_every_route_of_a_server() -> None:
    page = (ROOT / "docs" / "apis.md").read_text(encoding="utf-8")
    table = page.partition("## Routes")[2].partition("\n## ")[0]
    named = set(re.findall(r"[`,] ?(?:[A-Z]+ )?(/[\w/{}.]+)(?=`)", table))
    paths = {re.sub(r"\{\w+\}", "{id}", path) for path in openapi.document()["paths"]}
    assert len(paths) > 20 and paths - named == set()


def test_every_image_is_shown_by_a_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *DOCS))
    assert [path.name for path in (ROOT / "docs" / "images").iterdir() if f"images/{path.name})" not in text] == []


def test_no_example_can_kill_a_process_of_another_program() -> None:
    found = [shown(page) for page in (ROOT / "README.md", *DOCS) if UNSAFE_KILL.search(page.read_text("utf-8"))]
    assert found == []
    assert UNSAFE_KILL.search('kill -9 $(pgrep -f "chairlift serve")') and not UNSAFE_KILL.search("pgrep -P $fleet -f")


def test_nothing_that_ships_leans_on_the_workshop() -> None:
    """A fresh clone stands alone: no path leads out of it."""
    outside = (".." + "/shared", "/work" + "/")
    files = [ROOT / name for name in ("README.md", "CHANGELOG.md", "Makefile", "pyproject.toml", ".ci/run")]
    for folder in ("src", "tests", "tools", "docs", "constraints"):
        files += [path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md", ".txt", ".json")]
    found = [shown(path) for path in files if any(name in path.read_text(encoding="utf-8") for name in outside)]
    assert found == []


def test_the_ci_runs_the_test_command_of_the_readme() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    lines = script.read_text().splitlines()
    commands = (
        "lint > build/lint.log 2>&1 & lint=$!",
        "test-compile || failed=1",
        "test 2>&1 | tee build/test.log || failed=1",
    )
    assert {f"make {each}" for each in commands} <= set(lines)
    assert lines[-1] == 'exit "${failed:-0}"'
    assert "\n$ make test\n" in (ROOT / "README.md").read_text()


def test_every_make_target_that_a_page_names_exists() -> None:
    pages = [page for page in (ROOT / "README.md", *DOCS) if page.parent.name != "adr"]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    named = set(re.findall(r"(?:`|\$ )make ([a-z-]+)(?=[`\s])", text))
    makefile = (ROOT / "Makefile").read_text()
    assert {"serve", "generate", "test", "test-all", "lint"} <= named
    assert {name for name in named if not re.search(rf"^{name}:", makefile, flags=re.MULTILINE)} == set()


def test_the_changelog_has_a_place_for_what_comes_and_for_no_later_version() -> None:
    headings = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert all(heading <= chairlift.__version__ for heading in headings[1:])


def test_every_link_between_documents_leads_to_a_file_and_a_heading() -> None:
    broken = []
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS]:
        for target, _, heading in re.findall(r"\]\(([^)#:]*)(#([\w-]+))?\)", page.read_text(encoding="utf-8")):
            file = (page.parent / target) if target else page
            if not file.exists() or (heading and heading not in headings(file)):
                broken.append(f"{shown(page)}: {target}#{heading}")
    assert broken == []


def test_prose_lines_have_at_most_120_characters() -> None:
    """Tables, code and the targets of links do not count."""
    pages = [ROOT / "README.md", *DOCS]
    assert [f"{shown(page)}:{number}" for page in pages for number in long_prose_lines(page.read_text())] == []


def test_a_long_prose_line_is_found() -> None:
    long = "word " * 24 + "x"
    fence = f"```\n{long}\n```"
    text = f"{long}\n| {long} |\n{fence}\n[{long[:50]}](https://a.test/{'x' * 100})\n* {long}\n"
    assert list(long_prose_lines(text)) == [1, 7]


def long_prose_lines(text: str) -> Iterator[int]:
    """Yield the numbers of the lines of prose that are too long."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        is_code ^= line.lstrip().startswith("```")
        shown_line = re.sub(r"\]\([^)]*\)", "]", line)
        if not is_code and not line.startswith("|") and len(shown_line) > MAX_PROSE_CHARS:
            yield number


def headings(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles(page)}


def titles(page: Path) -> list[str]:
    """Return the headings of a page, without the lines of fenced blocks."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
