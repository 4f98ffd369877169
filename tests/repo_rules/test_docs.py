"""What the documents say is there, is there; and what is there is in the documents."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import chairlift
from support_source_tree import PACKAGE, ROOT, shown

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
MAX_PROSE_CHARS = 120


def test_architecture_names_every_package() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")} - {PACKAGE}
    names = {folder.relative_to(PACKAGE).as_posix() for folder in folders}
    assert {name for name in names if f"`{name}/`" not in ARCHITECTURE} == set()


def test_every_directory_that_architecture_names_exists() -> None:
    named = set(re.findall(r"^### `([a-z_/]+)/`", ARCHITECTURE, flags=re.MULTILINE))
    assert {name for name in named if not (PACKAGE / name).is_dir()} == set()


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
    assert script.read_text().rstrip().endswith("\nmake test-compile\nexec make test")
    assert "\n$ make test\n" in (ROOT / "README.md").read_text()


def test_every_make_target_that_the_readme_names_exists() -> None:
    named = set(re.findall(r"make ([a-z-]+)(?=[`\s])", (ROOT / "README.md").read_text()))
    makefile = (ROOT / "Makefile").read_text()
    assert {"serve", "generate", "test", "test-all", "lint"} <= named
    assert {name for name in named if not re.search(rf"^{name}:", makefile, flags=re.MULTILINE)} == set()


def test_the_changelog_has_a_place_for_what_comes_and_for_no_later_version() -> None:
    headings = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert all(heading <= chairlift.__version__ for heading in headings[1:])


def test_every_link_between_documents_leads_to_a_file_and_a_heading() -> None:
    broken = []
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]:
        for target, _, heading in re.findall(r"\]\(([^)#:]*)(#([\w-]+))?\)", page.read_text(encoding="utf-8")):
            file = (page.parent / target) if target else page
            if not file.exists() or (heading and heading not in headings(file)):
                broken.append(f"{shown(page)}: {target}#{heading}")
    assert broken == []


def test_prose_lines_have_at_most_120_characters() -> None:
    """Tables, code and the targets of links do not count."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
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
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
