"""reads_tools, takes_system_messages, offers_direct_answer: what a chat template uses and accepts."""

import re
from functools import lru_cache

_BLOCK = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)

_READS_TOOLS = re.compile(r"(?<![\w.\"'])(?:xml_)?tools\b(?![\"'(])")

_REJECTS_SYSTEM = re.compile(r"raise_exception\([^)]*system[^)]*support", re.IGNORECASE)


@lru_cache(maxsize=16)
def reads_tools(template: str) -> bool:
    """Return whether a template uses the variable `tools`, or `xml_tools` as SmolLM3's does."""
    return any(_READS_TOOLS.search(block) for block in _BLOCK.findall(template))


@lru_cache(maxsize=16)
def takes_system_messages(template: str) -> bool:
    """Return whether a template knows the role `system` and does not reject it."""
    return "system" in template and _REJECTS_SYSTEM.search(template) is None


def offers_direct_answer(template: str) -> bool:
    """Return whether a template has the model call a tool that no request offers where it needs none (Command-R).

    A grammar of the request's tools would make the model call one of these instead.
    """
    return "directly-answer" in template
