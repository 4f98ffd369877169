"""packages_page: docs/packages.md, every module of the package with its caption, folder by folder from low to high."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from reference_docs.markdown import make_page, make_table

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "chairlift"
PROJECT = ROOT / "pyproject.toml"

DOCSTRING = re.compile(r'"""(?P<caption>.+?)(?:"""$|$)', re.MULTILINE).match  # to parse all modules takes seconds

INTRO = """# Packages

Every module of `src/chairlift/` with the first line of its docstring. After the package itself, its folders are in the
order of the import contracts in `pyproject.toml`, from low to high: a package imports only from packages of lower
layers, which stand above it. [architecture.md](architecture.md) has the layers and the ideas."""


def packages_page(package: Path = PACKAGE, project: Path = PROJECT) -> str:
    """Return docs/packages.md for the folder of a package and the pyproject.toml that has its import contracts."""
    ranks = read_layer_ranks(tomllib.loads(project.read_text(encoding="utf-8")))
    return make_page(INTRO, *(_section(folder, package) for folder in _walk(package, package.name, ranks)))


def read_layer_ranks(project: Mapping[str, Any]) -> Mapping[str, int]:
    """Return the rank of each module that a layers contract of import-linter names, by its full name; 0 is lowest."""
    contracts = [each for each in project["tool"]["importlinter"]["contracts"] if each["type"] == "layers"]
    return {
        f"{container}.{name}" if container else name: rank
        for contract in contracts
        for container in contract.get("containers", [""])
        for rank, layer in enumerate(reversed(contract["layers"]))
        for name in re.findall(r"[\w.]+", layer)
    }


def _walk(folder: Path, name: str, ranks: Mapping[str, int]) -> Iterator[Path]:
    """Yield a folder and the folders of modules in it: those of layers from low to high, then others by name."""
    yield folder
    inner = [path for path in folder.iterdir() if path.is_dir() and any(path.rglob("*.py"))]
    for path in sorted(inner, key=lambda path: (ranks.get(f"{name}.{path.name}", len(ranks)), path.name)):
        yield from _walk(path, f"{name}.{path.name}", ranks)


def _section(folder: Path, package: Path) -> str:
    parts = folder.relative_to(package).parts
    heading = f"{'###' if len(parts) > 1 else '##'} `{'/'.join(parts) or package.name}/`"
    modules = [path for path in sorted(folder.glob("*.py")) if path.stem != "__init__"]
    rows = [(f"[`{path.stem}`]({_link(path, package)})", caption(path)) for path in modules]
    texts = [heading, caption(folder / "__init__.py"), make_table(("module", "content"), rows) if rows else ""]
    return "\n\n".join(text for text in texts if text)


def _link(path: Path, package: Path) -> str:
    return f"../src/{package.name}/{path.relative_to(package).as_posix()}"


def caption(path: Path) -> str:
    """Return the first line of a module's docstring as Markdown, or "" for a module without one."""
    if not path.exists():
        return ""
    docstring = DOCSTRING(path.read_text(encoding="utf-8"))
    first = docstring["caption"] if docstring else ""
    texts = first.split("`")  # every second one is code
    return "`".join(text if at % 2 else _escape(text) for at, text in enumerate(texts))


def _escape(text: str) -> str:
    """Escape what Markdown would read as a tag or as emphasis."""
    return re.sub(r"[<*]|\b_+|_+\b", lambda match: "".join(f"\\{each}" for each in match[0]), text)
