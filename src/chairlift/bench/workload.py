"""Workloads: who asks for what, and when; made from a seed or read from a file."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem:
    """One request of a workload.

    Attributes:
        at: seconds after the start at which it arrives.
        prompt_token_ids: its prompt.
        output_tokens: how many it generates; end of sequence is ignored.
        tenant: whose it is.
        priority: smaller rides first, where the policy looks at it.
        timeout: seconds, None for no limit.
    """

    at: float
    prompt_token_ids: tuple[int, ...]
    output_tokens: int
    tenant: str = ""
    priority: int = 0
    timeout: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests in the order of their arrival.

    Attributes:
        name: longtail, uniform, prefix, or the file it came from.
        seed: of everything drawn.
        items: by `at`.
    """

    name: str
    seed: int
    items: tuple[WorkItem, ...]
