"""Files and functions stay small enough to be read at once, and every module says what lives there."""

import ast

from support_tree import ROOT, SOURCES, TOOLS, shown, tree_of

TESTS = tuple(sorted((ROOT / "tests").rglob("*.py")))
MAX_FILE_LINES = 400
STILL_LONGER = {
    "tests/server/openai/test_generation.py",
    "tests/server/openai/test_parse_request.py",
    "tests/server/openai/test_response.py",
    "tests/server/openai/test_tool_choice.py",
    "tests/server/test_openapi.py",
    "tests/system/test_bad_input.py",
    "tests/system/test_faults.py",
    "tests/web/test_admission.py",
    "tests/web/test_http_protocol.py",
}
"""Test files that are still to be split. A file leaves the set when it is short enough, and no file enters it."""

MAX_FUNCTION_LINES = 60


def test_no_file_is_longer_than_400_lines() -> None:
    lines = {shown(path): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES + TOOLS + TESTS}
    assert {name: n for name, n in lines.items() if n > MAX_FILE_LINES and name not in STILL_LONGER} == {}


def test_a_file_that_is_short_enough_is_not_listed_as_longer() -> None:
    long = {shown(path) for path in TESTS if len(path.read_text(encoding="utf-8").splitlines()) > MAX_FILE_LINES}
    assert long >= STILL_LONGER


def test_no_function_is_longer_than_60_lines() -> None:
    long = {
        f"{shown(path)}:{node.lineno} {node.name}": count
        for path in SOURCES + TOOLS
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (count := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    }
    assert long == {}


def test_every_module_opens_with_a_caption() -> None:
    """The first line is a whole sentence or caption: it has an end, and is not just the file's name."""
    bad = {}
    for path in SOURCES + TOOLS:
        first = (ast.get_docstring(tree_of(path)) or "").partition("\n")[0]
        if len(first.split()) < 3 or first[-1] not in ".:;!?":
            bad[shown(path)] = first
    assert bad == {}


def test_every_test_module_opens_with_a_caption() -> None:
    assert TESTS
    assert [shown(path) for path in TESTS if not ast.get_docstring(tree_of(path))] == []
