"""LatencyTargets: the latencies that a request is to have."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyTargets:
    """The latencies that a request is to have; None means no target.

    Attributes:
        ttft_seconds: longest time to the first token.
        itl_seconds: longest mean time between two tokens.
    """

    ttft_seconds: float | None = None
    itl_seconds: float | None = None

    @classmethod
    def of_milliseconds(cls, ttft_ms: float | None, itl_ms: float | None) -> "LatencyTargets":
        """Return the targets of the settings `slo_ttft_ms` and `slo_itl_ms`."""
        ttft, itl = (None if each is None else each / 1000 for each in (ttft_ms, itl_ms))
        return cls(ttft_seconds=ttft, itl_seconds=itl)
