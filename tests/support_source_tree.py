"""The project's source tree: its folders, the source modules and their syntax trees."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "chairlift"
SOURCES = tuple(sorted(PACKAGE.rglob("*.py")))
TOOLS = tuple(sorted((ROOT / "tools").rglob("*.py")))


@cache
def tree_of(path: Path) -> ast.Module:
    """Parse a source file, once."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def shown(path: Path) -> str:
    """Return the path of a file relative to the root of the project."""
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    """Turn src/chairlift/a/b.py into chairlift.a.b (and a/__init__.py into chairlift.a)."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_files(name: str) -> tuple[Path, ...]:
    """Return all source files of one top-level package."""
    return tuple(path for path in SOURCES if path.is_relative_to(PACKAGE / name))


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield every statement below a node, and the node if it is one; several times as fast as a walk of expressions."""
    if isinstance(node, ast.stmt):
        yield node
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        for each in getattr(node, name, ()):
            yield from statements(each)


def imported(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every module (or name in a module) that is imported below a node, with its line."""
    for each in statements(node):
        if isinstance(each, ast.Import):
            yield from ((alias.name, each.lineno) for alias in each.names)
        elif isinstance(each, ast.ImportFrom):
            assert each.level == 0, f"relative import in line {each.lineno}"
            yield each.module or "", each.lineno
            yield from ((f"{each.module}.{alias.name}", each.lineno) for alias in each.names)
