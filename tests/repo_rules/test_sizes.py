"""Functions have a maximum length, and every module has a docstring with its purpose and names that it has."""

import ast
import re

from support_source_tree import ROOT, SOURCES, TOOLS, shown, statements, tree_of

TESTS = tuple(sorted((ROOT / "tests").rglob("*.py")))
MAX_FUNCTION_LINES = 60
NAME = r"[A-Za-z_][\w.]*(?:\(\))?"
CAPTION = re.compile(rf'"""({NAME}(?:(?:, and |, | and ){NAME})*)(?:: |$)').match


def test_no_function_is_longer_than_60_lines() -> None:
    long = {
        f"{shown(path)}:{node.lineno} {node.name}": count
        for path in SOURCES + TOOLS
        for node in statements(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (count := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    }
    assert long == {}


def test_every_module_opens_with_a_caption() -> None:
    """The first line has three words or more and ends with punctuation."""
    bad = {}
    for path in SOURCES + TOOLS:
        first = (ast.get_docstring(tree_of(path)) or "").partition("\n")[0]
        if len(first.split()) < 3 or first[-1] not in ".:;!?":
            bad[shown(path)] = first
    assert bad == {}


def test_a_caption_names_what_is_in_its_module() -> None:
    missing = {}
    for path in SOURCES + TOOLS:
        text = path.read_text(encoding="utf-8")
        unknown = [name for name in captioned(text) if len(re.findall(rf"\b{name}\b", text)) < 2]
        if unknown:
            missing[shown(path)] = unknown
    assert missing == {}


def captioned(text: str) -> list[str]:
    """Return the identifiers before the colon of a caption: `RunQueue, pick_next: ...`; plain words are not any."""
    names = CAPTION(text)
    words = re.findall(r"\w+(?:\(\))?", names[1]) if names else []
    return [word.removesuffix("()") for word in words if re.search(r"_|[a-z][A-Z]|\(", word)]


def test_identifiers_of_captions_are_found() -> None:
    assert captioned('"""read_it, RunQueue and run(): for the caption."""') == ["read_it", "RunQueue", "run"]
    assert captioned('"""Command line: two words."""') == captioned('"""No colon, but read_it."""') == []


def test_every_test_module_opens_with_a_caption() -> None:
    assert TESTS
    opens = re.compile(r'"""[^"\s]').match  # to parse them all takes seconds
    assert [shown(path) for path in TESTS if not opens(path.read_text(encoding="utf-8"))] == []
