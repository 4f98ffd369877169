"""Rides: what was seen of each request of a run, and what they add up to."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from chairlift.bench.report.percentiles import downsample, summarize
from chairlift.bench.workload.workload import WorkloadRequest

MAX_SAMPLES = 512
"""Samples of a kind that a report keeps, for plots."""


@dataclass(slots=True)
class RequestRecord:
    """One request as it was seen from outside.

    Attributes:
        item: what was asked.
        stamps: moments at which tokens came, in seconds after the start; several tokens may come at once.
        output_tokens: how many came.
        cached_tokens: of the prompt, from the prefix cache.
        ended: the moment of the end, in seconds after the start; None while it is open.
        error: the code of what made it fail; "" when it did not.
    """

    item: WorkloadRequest
    stamps: list[float] = field(default_factory=list)
    output_tokens: int = 0
    cached_tokens: int = 0
    ended: float | None = None
    error: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether it ended without an error and brought every token that was asked for."""
        return self.ended is not None and not self.error and self.output_tokens == self.item.output_tokens


def summarize_requests(rides: Sequence[RequestRecord], seconds: float) -> dict[str, Any]:
    """Return throughput over `seconds` and the distributions of times, as a report has them.

    latency_seconds: from a request's arrival (its `at`, not when it was taken) to its end. ttft_seconds: to its first
    token. itl_seconds: between two moments at which tokens of a request came. Failed requests count as failed, and
    nowhere else.
    """
    whole = [ride for ride in rides if ride.is_whole]
    prompt = sum(len(ride.item.prompt_token_ids) for ride in whole)
    output = sum(ride.output_tokens for ride in whole)
    latency = [ride.ended - ride.item.at for ride in whole if ride.ended is not None]
    ttft = [ride.stamps[0] - ride.item.at for ride in whole if ride.stamps]
    itl = [after - before for ride in whole for before, after in pairwise(ride.stamps)]
    errors = Counter(ride.error or "incomplete" for ride in rides if not ride.is_whole)
    return {
        "seconds": seconds,
        "output_tokens_per_second": output / seconds,
        "total_tokens_per_second": (prompt + output) / seconds,
        "requests_per_second": len(whole) / seconds,
        "latency_seconds": summarize(latency),
        "ttft_seconds": summarize(ttft),
        "itl_seconds": summarize(itl),
        "requests": {
            "total": len(rides),
            "completed": len(whole),
            "failed": len(rides) - len(whole),
            "errors": dict(errors),
        },
        "tokens": {"prompt": prompt, "output": output, "cached": sum(ride.cached_tokens for ride in whole)},
        "samples": {
            "latency_seconds": downsample(latency, MAX_SAMPLES),
            "ttft_seconds": downsample(ttft, MAX_SAMPLES),
            "itl_seconds": downsample(itl, MAX_SAMPLES),
        },
    }
