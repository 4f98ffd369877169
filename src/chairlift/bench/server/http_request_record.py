"""HttpRequestRecord, Outcome: token times and outcome of one request over HTTP."""

import math
from array import array
from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    """The outcome of a request for its client."""

    OK = "ok"
    REFUSED = "refused"
    BAD_STATUS = "bad_status"
    ERROR_EVENT = "error_event"
    UNFINISHED = "unfinished"
    CONNECTION_LOST = "cut"
    TIMEOUT = "timeout"
    UNREACHABLE = "unreachable"
    INVALID_RESPONSE = "garbage"
    INTERRUPTED = "interrupted"


TERMINAL = frozenset({Outcome.OK, Outcome.REFUSED, Outcome.BAD_STATUS, Outcome.ERROR_EVENT})
"""Outcomes with a complete response of the server."""


@dataclass(slots=True)
class HttpRequestRecord:
    """One request as its client measured it; times are seconds since the start of the phase.

    Attributes:
        due: the time at which it was due.
        sent: the time at which it was sent, before a connection was chosen.
        requested_tokens: number of output tokens; 0 when the output may end earlier.
        ended: the time at which its response ended.
        outcome: its outcome; INTERRUPTED while it is open.
        status: HTTP status, 0 without a response.
        code: error code; "" without an error.
        why: a short reason when there was no complete response.
        arrivals: times of the chunks with tokens.
        weights: number of tokens of each such chunk if the server sends token ids, else 1.
        usage_tokens: output tokens by the server's usage.
        prompt_tokens: prompt tokens by the server's usage.
        has_ids: whether weights are numbers of tokens.
        retry_after: seconds of the Retry-After header, None without one.
    """

    due: float
    sent: float
    requested_tokens: int = 0
    ended: float = math.nan
    outcome: Outcome = Outcome.INTERRUPTED
    status: int = 0
    code: str = ""
    why: str = ""
    arrivals: "array[float]" = field(default_factory=lambda: array("d"))
    weights: "array[int]" = field(default_factory=lambda: array("I"))
    usage_tokens: int | None = None
    prompt_tokens: int | None = None
    has_ids: bool = False
    retry_after: float | None = None

    @property
    def output_tokens(self) -> int:
        """Output tokens by the server's usage, or else as counted."""
        return sum(self.weights) if self.usage_tokens is None else self.usage_tokens

    @property
    def ttft(self) -> float | None:
        """Seconds from the due time to the first token, None without a token."""
        return self.arrivals[0] - self.due if self.arrivals else None

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first one, None for fewer than two tokens."""
        tokens = self.output_tokens
        return (self.arrivals[-1] - self.arrivals[0]) / (tokens - 1) if self.arrivals and tokens > 1 else None

    @property
    def is_miscounted(self) -> bool:
        """Whether the number of received token ids differs from the server's usage."""
        return self.has_ids and self.usage_tokens is not None and sum(self.weights) != self.usage_tokens
