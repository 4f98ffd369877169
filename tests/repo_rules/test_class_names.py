"""A class name stands once in the package, private and nested classes included: a reader who greps for it finds one."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from support_source_tree import SOURCES, shown, statements, tree_of

TWICE: dict[str, str] = {}
"""Class names that may stand twice, each with the external interface that demands it."""


STATED = re.compile(r"\bclass (\w+)")
"""Finds every class, and texts that look like one: only files with a name that is found twice are parsed."""


def class_names(tree: ast.Module) -> Iterator[str]:
    """Names of all classes of a module."""
    return (node.name for node in statements(tree) if isinstance(node, ast.ClassDef))


def repeated(sources: dict[str, ast.Module]) -> dict[str, list[str]]:
    """Return each name that stands more than once, with the files."""
    files = defaultdict(list)
    for file, tree in sources.items():
        for name in class_names(tree):
            files[name].append(file)
    return {name: found for name, found in sorted(files.items()) if len(found) > 1}


def test_no_class_name_stands_twice() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCES}
    stated = Counter(name for text in texts.values() for name in STATED.findall(text))
    unclear = [path for path, text in texts.items() if any(stated[name] > 1 for name in STATED.findall(text))]
    found = repeated({shown(path): tree_of(path) for path in unclear})
    assert {name: files for name, files in found.items() if name not in TWICE} == {}
    assert [name for name in TWICE if name not in found] == [], "an exception that is needed no more"


def test_the_search_finds_private_and_nested_classes_and_two_in_one_file() -> None:
    one = ast.parse("class A: ...\ndef f():\n    class _B: ...\nclass C:\n    class D: ...")
    two = ast.parse("class _B: ...\nclass D: ...\nif x:\n    class E: ...\nelse:\n    class E: ...")
    assert repeated({"one": one, "two": two}) == {"D": ["one", "two"], "E": ["two", "two"], "_B": ["one", "two"]}
    assert repeated({"one": one}) == {}
