"""served_name: the model that a name of Ollama's means; a name without a tag has the tag `latest` there."""

from collections.abc import Collection

LATEST = ":latest"


def served_name(name: str, served: Collection[str]) -> str:
    """Return the served name that a request means, or the name itself where none is served under it."""
    if name in served:
        return name
    other = name.removesuffix(LATEST) if name.endswith(LATEST) else name + LATEST
    return other if other in served else name
