"""Workload: requests with arrival times, made from a seed (generators.py) or read from a file (trace_reader.py)."""

import hashlib
from dataclasses import dataclass, field
from typing import Any

from chairlift.core.structured_output import StructuredOutput

MAX_SECONDS = 10_000_000
"""Latest arrival, about four months; a larger value is a date or a typing error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRequest:
    """One request of a workload.

    Attributes:
        at: arrival time in seconds after the start.
        prompt_token_ids: token ids of the prompt.
        output_tokens: number of output tokens; the end of sequence is ignored.
        tenant: the tenant that sends it; "" for none.
        priority: requests with a smaller value are scheduled first, if the policy uses priorities.
        timeout: limit in seconds; None for no limit.
        structured: constraint on the output; such a request may end before output_tokens.
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
        name: name of a generator, or of the trace file.
        seed: seed of all random numbers.
        items: the requests, ordered by `at`.
    """

    name: str
    seed: int
    items: tuple[WorkloadRequest, ...]

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return sum(len(item.prompt_token_ids) for item in self.items)

    @property
    def output_tokens(self) -> int:
        """Output tokens of all requests."""
        return sum(item.output_tokens for item in self.items)

    @property
    def arrives_at_once(self) -> bool:
        """Whether every request arrives at the start."""
        return not any(item.at > 0 for item in self.items)

    def summary(self) -> dict[str, Any]:
        """Return the fields that every run reports of its workload: digest and numbers of tokens."""
        return {
            "workload_digest": self.digest(),
            "workload_tokens": {"prompt": self.prompt_tokens, "output": self.output_tokens},
        }

    def digest(self) -> str:
        """Return a SHA-256 of all requests, which proves that two runs did the same work."""
        hashed = hashlib.sha256()
        for item in self.items:
            # The class was called WorkItem when digests were first recorded; results committed then stay comparable.
            hashed.update(f"WorkItem{repr(item).removeprefix(type(item).__name__)}\n".encode())
            if item.structured is not None:
                hashed.update(f"{item.structured!r}\n".encode())
        return hashed.hexdigest()
