"""Workloads: who asks for what, and when; made from a seed (generators.py) or read from a file (trace.py)."""

import hashlib
from dataclasses import dataclass, field
from typing import Any

from chairlift.core.structured_output import StructuredOutput

MAX_SECONDS = 10_000_000
"""The latest arrival: four months; what is later is a date or a slip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRequest:
    """One request of a workload.

    Attributes:
        at: seconds after the start at which it arrives.
        prompt_token_ids: its prompt.
        output_tokens: how many it generates; end of sequence is ignored.
        tenant: whose it is.
        priority: smaller rides first, where the policy looks at it.
        timeout: seconds, None for no limit.
        structured: what its output has to be; one that may end before output_tokens does.
    """

    at: float
    prompt_token_ids: tuple[int, ...]
    output_tokens: int
    tenant: str = ""
    priority: int = 0
    timeout: float | None = None
    structured: StructuredOutput | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests in the order of their arrival.

    Attributes:
        name: of a generator, or the file it came from.
        seed: of everything drawn.
        items: by `at`.
    """

    name: str
    seed: int
    items: tuple[WorkloadRequest, ...]

    @property
    def prompt_tokens(self) -> int:
        """Of all requests together."""
        return sum(len(item.prompt_token_ids) for item in self.items)

    @property
    def output_tokens(self) -> int:
        """Of all requests together."""
        return sum(item.output_tokens for item in self.items)

    @property
    def arrives_at_once(self) -> bool:
        """Whether nobody comes later than at the start."""
        return not any(item.at > 0 for item in self.items)

    def summary(self) -> dict[str, Any]:
        """Return what every run tells of it: its digest, and its tokens."""
        return {
            "workload_digest": self.digest(),
            "workload_tokens": {"prompt": self.prompt_tokens, "output": self.output_tokens},
        }

    def digest(self) -> str:
        """Return a SHA-256 of everything in it, so that two runs can show that they did the same work."""
        hashed = hashlib.sha256()
        for item in self.items:
            # The class was called WorkItem when digests were first recorded; results committed then stay comparable.
            hashed.update(f"WorkItem{repr(item).removeprefix(type(item).__name__)}\n".encode())
            if item.structured is not None:
                hashed.update(f"{item.structured!r}\n".encode())
        return hashed.hexdigest()
