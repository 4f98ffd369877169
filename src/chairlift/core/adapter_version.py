"""AdapterVersion: which LoRA adapter, in which version of its files, a request runs with."""

from dataclasses import dataclass

from chairlift.core.errors import EngineDead


@dataclass(frozen=True, slots=True)
class AdapterVersion:
    """One version of an adapter's files, as a runner has loaded it.

    Attributes:
        number: identifies the version in the runner, at least 1; 0 is the model without an adapter.
        digest: of the adapter's files; part of the root of block hashes. Two versions with equal files share blocks.
    """

    number: int = 0
    digest: str = ""


NO_ADAPTER = AdapterVersion()
"""The model without an adapter."""


def missing_adapter() -> EngineDead:
    """Return the error of a request whose adapter an engine does not have; the client may load it again."""
    return EngineDead("the engine does not have the adapter of this request; it may have restarted")
