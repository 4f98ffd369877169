"""Chat templates of the tests: those of well-known models, in our own words, and conversations with markers."""

from functools import cache
from pathlib import Path

from chairlift.text.chat_template import ChatTemplate
from support_services import AsciiTokenizer

FOLDER = Path(__file__).parent / "text/chat_templates"

NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.jinja") if not path.stem.endswith(".tool_use")))
"""Names of the models whose templates are in the folder."""


@cache
def template_of(name: str) -> ChatTemplate:
    """Return the templates of a model, which have the same habits as the published ones."""
    paths = {"default": FOLDER / f"{name}.jinja", "tool_use": FOLDER / f"{name}.tool_use.jinja"}
    sources = {key: path.read_text(encoding="utf-8") for key, path in paths.items() if path.is_file()}
    return ChatTemplate(sources, AsciiTokenizer())


def chat_template(source: str) -> ChatTemplate:
    """Return a template with this text."""
    return ChatTemplate({"default": source}, AsciiTokenizer())
