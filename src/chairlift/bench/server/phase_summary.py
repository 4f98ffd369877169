"""summarize_phase(): the rates, latencies and outcomes of a phase of load, from the records of its requests."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from chairlift.bench.report.percentiles import downsample, summarize
from chairlift.bench.server.http_request_record import TERMINAL, HttpRequestRecord, Outcome
from chairlift.bench.server.slo import SLO, e2e_seconds

MAX_SAMPLES = 400
SETTLING_SHARE = 0.2
"""Share at the start of a phase that rates leave out, until the server's load is steady."""


@dataclass(frozen=True, slots=True)
class MeasureWindow:
    """The part of a phase over which rates are measured, in seconds since its start."""

    begin: float
    end: float

    @classmethod
    def of(cls, seconds: float | None, records: Iterable[HttpRequestRecord]) -> "MeasureWindow":
        """Return the window of a phase of `seconds` without its start; None for the window of a whole phase."""
        if seconds is None:
            return cls(0.0, max((each.ended for each in records if not math.isnan(each.ended)), default=0.0))
        return cls(SETTLING_SHARE * seconds, seconds)

    def rate(self, times: Iterable[float]) -> float | None:
        """Return the number per second of those times that lie in the window."""
        return self.total((at, 1.0) for at in times)

    def total(self, weighted: Iterable[tuple[float, float]]) -> float | None:
        """Return the sum per second of the weights whose times lie in the window."""
        if self.end <= self.begin:
            return None
        return math.fsum(weight for at, weight in weighted if self.begin <= at < self.end) / (self.end - self.begin)


def distribution_of(samples: Iterable[float | None]) -> dict[str, float | None]:
    """Return mean, percentiles and maximum of the samples that are not None; all None without any."""
    present = [each for each in samples if each is not None]
    return {**summarize(present), "max": max(present, default=None)}


def _token_events(records: Iterable[HttpRequestRecord]) -> Iterator[tuple[float, float]]:
    """Yield times and numbers of tokens; without token ids, spread the server's count over chunks."""
    for record in records:
        share = 1.0 if record.has_ids or not record.arrivals else record.output_tokens / len(record.arrivals)
        yield from ((at, weight * share) for at, weight in zip(record.arrivals, record.weights, strict=True))


def summarize_phase(records: Sequence[HttpRequestRecord], slo: SLO, seconds: float | None) -> dict[str, Any]:
    """Return the summary of a phase's records; `seconds` is how long requests arrived, if limited.

    In `tokens`, `asked` are the requested output tokens; `free` is the number of requests that may end earlier, which
    count as requesting none.

    Latencies are those of successful requests. ttft, e2e and refusal_from_due count from the due time of a request;
    ttft_from_sending and refusal count from its sending.
    """
    window = MeasureWindow.of(seconds, records)
    completed = [each for each in records if each.outcome is Outcome.OK]
    rejected = [each for each in records if each.outcome is Outcome.REFUSED]
    good = [each for each in completed if slo.is_met(each)]
    gaps = [after - before for each in completed for before, after in pairwise(each.arrivals)]
    return {
        "window": {"begin": window.begin, "end": window.end},
        "requests": _request_counts(records, good),
        "sent_per_second": window.rate(each.sent for each in records),
        "completed_per_second": window.rate(each.ended for each in completed),
        "goodput_per_second": window.rate(each.ended for each in good),
        "output_tokens_per_second": window.total(_token_events(records)),
        "good_tokens_per_second": window.total(_token_events(good)),
        "tokens": {
            "prompt": sum(each.prompt_tokens or 0 for each in completed),
            "output": sum(each.output_tokens for each in completed),
            "asked": sum(each.requested_tokens for each in records),
            "free": sum(not each.requested_tokens for each in records),
        },
        "ttft_seconds": distribution_of(each.ttft for each in completed),
        "ttft_from_sending_seconds": distribution_of(
            each.arrivals[0] - each.sent for each in completed if each.arrivals
        ),
        "tpot_seconds": distribution_of(each.tpot for each in completed),
        "itl_seconds": distribution_of(gaps),
        "e2e_seconds": distribution_of(map(e2e_seconds, completed)),
        "refusal_seconds": distribution_of(each.ended - each.sent for each in rejected),
        "refusal_from_due_seconds": distribution_of(map(e2e_seconds, rejected)),
        "retry_after_seconds": distribution_of(each.retry_after for each in rejected),
        "samples": {
            "ttft_seconds": downsample([each.ttft for each in completed if each.ttft is not None], MAX_SAMPLES),
            "e2e_seconds": downsample(map(e2e_seconds, completed), MAX_SAMPLES),
            "itl_seconds": downsample(gaps, MAX_SAMPLES),
        },
    }


def _request_counts(records: Sequence[HttpRequestRecord], good: Sequence[HttpRequestRecord]) -> dict[str, Any]:
    """Count requests by how they ended.

    non_terminal: requests without a complete response, except those that the client interrupted.
    empty: successful requests without a token.
    """
    outcomes = Counter(each.outcome for each in records)
    over = [each for each in records if each.outcome is not Outcome.INTERRUPTED]
    completed = [each for each in over if each.outcome is Outcome.OK]
    return {
        "total": len(records),
        "ok": outcomes[Outcome.OK],
        "good": len(good),
        "refused": outcomes[Outcome.REFUSED],
        "interrupted": outcomes[Outcome.INTERRUPTED],
        "failed": len(over) - outcomes[Outcome.OK] - outcomes[Outcome.REFUSED],
        "non_terminal": sum(each.outcome not in TERMINAL for each in over),
        "server_errors": sum(each.status >= 500 for each in over),
        "refused_without_retry_after": sum(
            each.outcome is Outcome.REFUSED and each.retry_after is None for each in over
        ),
        "miscounted": sum(each.is_miscounted for each in completed),
        "empty": sum(not each.arrivals for each in completed),
        "other_lengths": sum(each.requested_tokens not in (0, each.output_tokens) for each in completed),
        "by_outcome": {name.value: count for name, count in sorted(outcomes.items())},
        "by_status": {str(status): count for status, count in sorted(Counter(each.status for each in over).items())},
        "by_code": dict(sorted(Counter(each.code for each in over if each.code).items())),
        "why": dict(Counter(each.why for each in over if each.why).most_common(5)),
    }
