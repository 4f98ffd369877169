"""Functions have a maximum length, and every module has a docstring with its purpose."""

import ast
import re

from support_source_tree import ROOT, SOURCES, TOOLS, shown, statements, tree_of

TESTS = tuple(sorted((ROOT / "tests").rglob("*.py")))
MAX_FUNCTION_LINES = 60


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


def test_every_test_module_opens_with_a_caption() -> None:
    assert TESTS
    opens = re.compile(r'"""[^"\s]').match  # to parse them all takes seconds
    assert [shown(path) for path in TESTS if not opens(path.read_text(encoding="utf-8"))] == []
