"""How a step is shared between those who generate and those who still read their prompt."""

from typing import Protocol

from chairlift.core.errors import ConfigError

DEFAULT_SAFETY_MARGIN = 0.2


class Batching(Protocol):
    """Decides whether prompt tokens may ride in a step; generated tokens always do."""

    def may_prefill(self, *, free_share: float, generating: int) -> bool:
        """Say so, given the share of blocks that nobody holds and how many sequences generate."""
        ...


class Mixed:
    """Prompt chunks ride in whatever budget the generating sequences leave."""

    def may_prefill(self, *, free_share: float, generating: int) -> bool:
        """Always."""
        return True


class FifoMargin:
    """Below a share of free blocks only those that generate ride, as in transformers' FIFO scheduler."""

    def __init__(self, safety_margin: float) -> None:
        self._margin = safety_margin

    def may_prefill(self, *, free_share: float, generating: int) -> bool:
        """Above the margin, or when nobody generates: then somebody has to begin."""
        return free_share >= self._margin or not generating


def make_batching(name: str, safety_margin: float | None) -> Batching:
    """Make the batching policy of that name.

    Raises ConfigError when there is none, or when a safety margin is given to one that has no use for it.
    """
    if name == "fifo":
        margin = DEFAULT_SAFETY_MARGIN if safety_margin is None else safety_margin
        if not 0 <= margin < 1:
            raise ConfigError(f"safety_margin must be at least 0 and less than 1, got {margin}", option="safety_margin")
        return FifoMargin(margin)
    if name != "mixed":
        raise ConfigError(f"unknown batching {name!r}; there is fifo, mixed", option="batching")
    if safety_margin is not None:
        raise ConfigError("safety_margin belongs to batching 'fifo'", option="safety_margin")
    return Mixed()
