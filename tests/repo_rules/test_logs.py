"""docs/operations.md lists every logger with every level it uses, and no other."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from support_source_tree import ROOT, SOURCES, module_name, tree_of

LEVELS = {name: name for name in ("debug", "info", "warning", "error")} | {"exception": "error", "critical": "error"}
ROW = re.compile(r"^\| `(chairlift[\w.]*)` \| (\w+) \| \S.*\|$", re.MULTILINE)


def is_getter(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger"


@cache
def modules_that_may_log() -> tuple[Path, ...]:
    """Return the modules that have a logger; the others need not be parsed."""
    return tuple(path for path in SOURCES if re.search(r"\blog\b|getLogger", path.read_text(encoding="utf-8")))


def levels(tree: ast.Module) -> Iterator[str]:
    """Levels at which a module logs by its own logger, which is called `log` or asked for on the spot."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        logger, method = node.func.value, node.func.attr
        if method in LEVELS and (is_getter(logger) or (isinstance(logger, ast.Name) and logger.id == "log")):
            yield LEVELS[method]


def test_every_logger_and_level_is_listed_and_no_other() -> None:
    said = {(module_name(path), level) for path in modules_that_may_log() for level in levels(tree_of(path))}
    rows = ROW.findall((ROOT / "docs" / "operations.md").read_text(encoding="utf-8"))
    assert len(rows) == len(set(rows))
    assert sorted(rows) == sorted(said)


def test_every_logger_has_its_modules_name() -> None:
    """The command line alone speaks of the root of them, and who hands its level on to a process."""
    names = {
        (module_name(path), ast.unparse(node.args[0]))
        for path in modules_that_may_log()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and is_getter(node)
    }
    roots = {("chairlift.observability.logging", "ROOT")}
    roots |= {("chairlift.observability.tracing.otlp_exporter", "LIBRARY_LOG")}  # the library's own logger
    roots |= {
        (module, "'ContinuousBatchingLogger'")  # the name in transformers
        for module, _ in names
        if module.startswith("chairlift.llm.transformers_compat.")
    }
    roots |= {(f"chairlift.engine.ipc.{name}", "'chairlift'") for name in ("engine_process", "engine_main")}
    ranks = ("rank_main", "tensor_parallel_runner")
    roots |= {(f"chairlift.model.distributed.{name}", "'chairlift'") for name in ranks}
    assert {pair for pair in names if pair[1] != "__name__"} <= roots
    assert ("chairlift.engine.engine_loop", "__name__") in names


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("log.warning('x')", ["warning"]),
        ("logging.getLogger(__name__).error('x')", ["error"]),
        ("def f():\n    log.exception('x')", ["error"]),
        ("math.log(2); other.error('x')", []),
    ],
)
def test_the_search_finds(source: str, found: list[str]) -> None:
    assert list(levels(ast.parse(source))) == found
