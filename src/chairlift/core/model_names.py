"""matching_name: the served name that a request's model name means, with Ollama's tag `:latest` or without it."""

from collections.abc import Collection

LATEST = ":latest"
"""Tag of Ollama's API for a name without one."""


def matching_name(name: str, names: Collection[str]) -> str:
    """Return the one of `names` that a name means; "" where none does."""
    if name in names:
        return name
    other = name.removesuffix(LATEST) if name.endswith(LATEST) else name + LATEST
    return other if other in names else ""
