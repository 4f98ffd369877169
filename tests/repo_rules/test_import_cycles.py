"""No two modules of the package import each other, directly or through others; imports inside functions count."""

import ast
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

import pytest

from support_source_tree import SOURCES, imported, module_name, statements, tree_of


def type_checking_imports(tree: ast.Module) -> set[str]:
    """Return the names that a module imports for its annotations only."""
    return {
        name
        for node in statements(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for name, _ in imported(node)
    }


def import_graph(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Return for each module the other modules of `trees` that it imports when it runs."""
    graph = {}
    for module, tree in trees.items():
        names = {name for name, _ in imported(tree)} - type_checking_imports(tree)
        parents = {name.rpartition(".")[0] for name in names & trees.keys()}
        graph[module] = (names & trees.keys()) - parents - {module}
    return graph


def import_cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the modules of one cycle, the first one again at the end; an empty list if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle[::-1]
    return []


def test_the_package_has_no_import_cycle() -> None:
    graph = import_graph({module_name(path): tree_of(path) for path in SOURCES})
    assert len(graph) > 200
    assert import_cycle(graph) == []


@pytest.mark.parametrize(
    ("sources", "num_modules"),
    [
        ({"p": "", "p.a": "import p.b", "p.b": ""}, 0),
        ({"p": "", "p.a": "import p.b", "p.b": "def f():\n    from p.a import g"}, 2),
        ({"p": "", "p.a": "from p import b", "p.b": "from p.c import x", "p.c": "import p.a"}, 3),
        ({"p": "", "p.a": "import p.b", "p.b": "if TYPE_CHECKING:\n    from p.a import g"}, 0),
        ({"p": "from p.a import x", "p.a": "from p.b import y", "p.b": ""}, 0),
    ],
)
def test_cycles_are_found(sources: dict[str, str], num_modules: int) -> None:
    cycle = import_cycle(import_graph({name: ast.parse(source) for name, source in sources.items()}))
    assert len(set(cycle)) == num_modules
