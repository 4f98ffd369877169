"""RequestRecord: token times and outcome of each request of a run; summarize_requests() aggregates them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from chairlift.bench.report.percentiles import downsample, summarize
from chairlift.bench.workload.workload import WorkloadRequest

MAX_SAMPLES = 512
"""Most samples of each kind in a report, for plots."""


@dataclass(slots=True)
class RequestRecord:
    """One request as its client measured it.

    Attributes:
        item: the request.
        stamps: times at which tokens arrived, in seconds after the start; several tokens may arrive at once.
        output_tokens: number of tokens received.
        cached_tokens: prompt tokens from the prefix cache.
        ended: time of the end, in seconds after the start; None while the request is open.
        error: the error code of a failed request, else "".
    """

    item: WorkloadRequest
    stamps: list[float] = field(default_factory=list)
    output_tokens: int = 0
    cached_tokens: int = 0
    ended: float | None = None
    error: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether the request ended without an error and with every token that it requested."""
        return self.ended is not None and not self.error and self.output_tokens == self.item.output_tokens


def summarize_requests(records: Sequence[RequestRecord], seconds: float) -> dict[str, Any]:
    """Return throughput over `seconds` and latency distributions, with the field names of a report.

    latency_seconds: from a request's arrival time (`at`, not its submission) to its end. ttft_seconds: from its arrival
    time to its first token. itl_seconds: between two times at which tokens of a request arrived. Failed requests count
    only in `requests`.
    """
    completed = [record for record in records if record.is_complete]
    prompt = sum(len(record.item.prompt_token_ids) for record in completed)
    output = sum(record.output_tokens for record in completed)
    latency = [record.ended - record.item.at for record in completed if record.ended is not None]
    ttft = [record.stamps[0] - record.item.at for record in completed if record.stamps]
    itl = [after - before for record in completed for before, after in pairwise(record.stamps)]
    errors = Counter(record.error or "incomplete" for record in records if not record.is_complete)
    return {
        "seconds": seconds,
        "output_tokens_per_second": output / seconds,
        "total_tokens_per_second": (prompt + output) / seconds,
        "requests_per_second": len(completed) / seconds,
        "latency_seconds": summarize(latency),
        "ttft_seconds": summarize(ttft),
        "itl_seconds": summarize(itl),
        "requests": {
            "total": len(records),
            "completed": len(completed),
            "failed": len(records) - len(completed),
            "errors": dict(errors),
        },
        "tokens": {"prompt": prompt, "output": output, "cached": sum(record.cached_tokens for record in completed)},
        "samples": {
            "latency_seconds": downsample(latency, MAX_SAMPLES),
            "ttft_seconds": downsample(ttft, MAX_SAMPLES),
            "itl_seconds": downsample(itl, MAX_SAMPLES),
        },
    }
