"""tests/ mirrors src file for file: each module that has code has its own test file."""

import ast
from pathlib import Path

from support_source_tree import PACKAGE, ROOT, SOURCES, shown, statements, tree_of

# Modules with code whose tests stand elsewhere, and where.
ELSEWHERE = {
    "src/chairlift/__init__.py": "lazy names only; tests/repo_rules/test_layers.py imports it without torch",
}


def has_code(tree: ast.Module) -> bool:
    """Whether any function does something: a body of more than docstring, `...` and `pass`."""
    return any(
        not isinstance(line, ast.Pass) and not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
        for function in statements(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for line in function.body
    )


def mirror(path: Path) -> Path:
    """Return where the tests of a source file belong."""
    inside = path.relative_to(PACKAGE)
    return ROOT / "tests" / inside.parent / f"test_{inside.stem.strip('_')}.py"


def test_every_module_with_code_has_its_test_file() -> None:
    missing = [
        shown(path)
        for path in SOURCES
        if has_code(tree_of(path)) and not mirror(path).exists() and shown(path) not in ELSEWHERE
    ]
    assert missing == []


def test_the_exceptions_are_still_there() -> None:
    assert [name for name in ELSEWHERE if not (ROOT / name).exists() or mirror(ROOT / name).exists()] == []


def test_protocols_and_plain_data_count_as_no_code() -> None:
    assert not has_code(ast.parse("class P:\n    def run(self):\n        'Do it.'\n        ..."))
    assert has_code(ast.parse("class P:\n    def run(self):\n        'Do it.'\n        return 1"))
