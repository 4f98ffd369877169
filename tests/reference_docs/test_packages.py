"""packages_page: every folder and module once, in the order of the import contracts, with the caption of each."""

import re
from pathlib import Path

import pytest

from reference_docs.packages import PACKAGE, caption, packages_page, read_layer_ranks

PROJECT = """
[tool.importlinter]
root_package = "lift"

[[tool.importlinter.contracts]]
type = "layers"
containers = ["lift"]
layers = ["cli", "server : router", "(engine)"]

[[tool.importlinter.contracts]]
type = "forbidden"
source_modules = ["lift.engine"]

[[tool.importlinter.contracts]]
type = "layers"
layers = ["lift.engine.scheduler", "lift.engine.kv"]
"""


def write(folder: Path, **captions: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in captions.items():
        (folder / f"{name}.py").write_text(f'"""{text}"""\n' if text else "", encoding="utf-8")


@pytest.fixture
def page(tmp_path: Path) -> str:
    """Return the page of a small package."""
    package = tmp_path / "src" / "lift"
    write(package, __init__="Lift: carries requests.", __main__="`python -m lift`: runs it.")
    write(package / "cli", __init__="The command line.", main="main: starts a|b.\n\nMore of it.")
    write(package / "router", __init__="Router: many.", app="App: serves <all>, *each*, a_b, __c__, `<b>` once.")
    write(package / "server", __init__="", server="Server: serves one.")
    write(package / "engine", __init__="Engine: steps.", loop="Loop: one step after another.")
    write(package / "engine" / "scheduler", __init__="Scheduler: who runs.", queue="Queue: who waits.")
    write(package / "engine" / "kv", pool="Pool: blocks.")
    (package / "engine" / "__pycache__").mkdir()
    (tmp_path / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    return packages_page(package, tmp_path / "pyproject.toml")


def test_folders_come_from_low_to_high_and_folders_of_one_layer_by_name(page: str) -> None:
    assert re.findall(r"^#+ .*$", page, re.MULTILINE) == [
        "# Packages", "## `lift/`", "## `engine/`", "### `engine/kv/`", "### `engine/scheduler/`", "## `router/`",
        "## `server/`", "## `cli/`",
    ]  # fmt: skip


def test_each_folder_has_its_caption_and_each_module_a_row_with_a_link(page: str) -> None:
    assert "\n## `engine/`\n\nEngine: steps.\n\n| module | content |\n| --- | --- |\n" in page
    assert "\n| [`queue`](../src/lift/engine/scheduler/queue.py) | Queue: who waits. |\n" in page
    assert "| [`__main__`](../src/lift/__main__.py) | `python -m lift`: runs it. |" in page
    assert "__init__" not in page and "More of it" not in page and "__pycache__" not in page
    assert "\n## `server/`\n\n| module" in page and "\n### `engine/kv/`\n\n| module" in page


def test_text_that_markdown_would_read_is_escaped(page: str) -> None:
    assert "main: starts a\\|b. |" in page
    assert "App: serves \\<all>, \\*each\\*, a_b, \\_\\_c\\_\\_, `<b>` once. |" in page


def test_ranks_are_those_of_all_layers_contracts() -> None:
    layers = {"type": "layers", "containers": ["a"], "layers": ["x", "y | z"]}
    ranks = read_layer_ranks({"tool": {"importlinter": {"contracts": [layers]}}})
    assert ranks == {"a.x": 1, "a.y": 0, "a.z": 0}


def test_a_module_without_a_docstring_has_an_empty_caption(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("x = 1\n", encoding="utf-8")
    assert caption(tmp_path / "x.py") == caption(tmp_path / "missing.py") == ""


@pytest.mark.full
def test_low_packages_of_chairlift_come_before_those_that_import_them() -> None:
    headings = re.findall(r"^## `(\w+)/`$", packages_page(), re.MULTILINE)
    assert headings[0] == PACKAGE.name and headings[-1] == "cli"
    assert headings.index("core") < headings.index("engine") < headings.index("model") < headings.index("server")
