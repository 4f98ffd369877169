"""Goals: what an answer must keep to be counted as good, and what a phase's records come to."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from chairlift.bench.report.percentiles import downsample, summarize
from chairlift.bench.server.response_recorder import TERMINAL, HttpRequestRecord, Outcome
from chairlift.core.errors import ConfigError

MAX_SAMPLES = 400
SETTLING_SHARE = 0.2
"""Of a phase, at its beginning: rates are counted behind it, when the server is as full as it gets."""


def _e2e(record: HttpRequestRecord) -> float:
    return record.ended - record.due


def _widest_gap(record: HttpRequestRecord) -> float:
    return max((after - before for before, after in pairwise(record.arrivals)), default=0.0)


MEASURES: Mapping[str, Callable[[HttpRequestRecord], float | None]] = {
    "ttft": lambda record: record.first,
    "tpot": lambda record: record.tpot or 0.0,
    "itl": _widest_gap,
    "e2e": _e2e,
}


@dataclass(frozen=True, slots=True)
class SLO:
    """Limits of one request, in seconds: ttft and e2e count from when it was due, itl is its widest gap."""

    limits: Mapping[str, float]

    def __post_init__(self) -> None:
        for name, limit in self.limits.items():
            if name not in MEASURES:
                raise ConfigError(f"--slo knows {', '.join(MEASURES)}, not {name!r}", option="slo")
            if not 0 < limit < math.inf:
                raise ConfigError(f"--slo: {name} must be a positive number of seconds, got {limit:g}", option="slo")

    def met(self, record: HttpRequestRecord) -> bool:
        """Whether a request ended well, with something in it, and kept every limit."""
        if record.outcome is not Outcome.OK or not record.arrivals:
            return False
        return all(
            (value := MEASURES[name](record)) is not None and value <= limit for name, limit in self.limits.items()
        )


@dataclass(frozen=True, slots=True)
class MeasureWindow:
    """The part of a phase over which rates are counted, in seconds since it began."""

    begin: float
    end: float

    @classmethod
    def of(cls, seconds: float | None, records: Iterable[HttpRequestRecord]) -> "MeasureWindow":
        """Leave the beginning out of a phase of so many seconds; without a length it is all of it."""
        if seconds is None:
            return cls(0.0, max((each.ended for each in records if not math.isnan(each.ended)), default=0.0))
        return cls(SETTLING_SHARE * seconds, seconds)

    def rate(self, times: Iterable[float]) -> float | None:
        """How many a second of these moments lie in it."""
        return self.total((at, 1.0) for at in times)

    def total(self, weighed: Iterable[tuple[float, float]]) -> float | None:
        """How much a second of these weights at moments lies in it."""
        if self.end <= self.begin:
            return None
        return math.fsum(weight for at, weight in weighed if self.begin <= at < self.end) / (self.end - self.begin)


def distribution_of(samples: Iterable[float | None]) -> dict[str, float | None]:
    """Return mean, percentiles and the largest of those that are known; all None where none is."""
    known = [each for each in samples if each is not None]
    return {**summarize(known), "max": max(known, default=None)}


def _news(records: Iterable[HttpRequestRecord]) -> Iterator[tuple[float, float]]:
    """Yield when tokens came, and how many; where no ids came, the server's count is shared out evenly."""
    for record in records:
        share = 1.0 if record.has_ids or not record.arrivals else record.output_tokens / len(record.arrivals)
        yield from ((at, weight * share) for at, weight in zip(record.arrivals, record.weights, strict=True))


def summarize_phase(records: Sequence[HttpRequestRecord], goals: SLO, seconds: float | None) -> dict[str, Any]:
    """Return what a phase's records come to; `seconds` is the length of its arrivals, None where it has none.

    Of the tokens that were asked for, `free` counts requests which may end earlier, and so asked for none.

    Latencies are those of requests that ended well. From when a request was due: ttft, e2e and refusal_from_due; from
    when it was sent: ttft_from_sending and refusal.
    """
    window = MeasureWindow.of(seconds, records)
    whole = [each for each in records if each.outcome is Outcome.OK]
    refused = [each for each in records if each.outcome is Outcome.REFUSED]
    good = [each for each in whole if goals.met(each)]
    gaps = [after - before for each in whole for before, after in pairwise(each.arrivals)]
    return {
        "window": {"begin": window.begin, "end": window.end},
        "requests": _counted(records, good),
        "sent_per_second": window.rate(each.sent for each in records),
        "completed_per_second": window.rate(each.ended for each in whole),
        "goodput_per_second": window.rate(each.ended for each in good),
        "output_tokens_per_second": window.total(_news(records)),
        "good_tokens_per_second": window.total(_news(good)),
        "tokens": {
            "prompt": sum(each.prompt_tokens or 0 for each in whole),
            "output": sum(each.output_tokens for each in whole),
            "asked": sum(each.asked_tokens for each in records),
            "free": sum(not each.asked_tokens for each in records),
        },
        "ttft_seconds": distribution_of(each.first for each in whole),
        "ttft_from_sending_seconds": distribution_of(each.arrivals[0] - each.sent for each in whole if each.arrivals),
        "tpot_seconds": distribution_of(each.tpot for each in whole),
        "itl_seconds": distribution_of(gaps),
        "e2e_seconds": distribution_of(map(_e2e, whole)),
        "refusal_seconds": distribution_of(each.ended - each.sent for each in refused),
        "refusal_from_due_seconds": distribution_of(map(_e2e, refused)),
        "retry_after_seconds": distribution_of(each.retry_after for each in refused),
        "samples": {
            "ttft_seconds": downsample([each.first for each in whole if each.first is not None], MAX_SAMPLES),
            "e2e_seconds": downsample(map(_e2e, whole), MAX_SAMPLES),
            "itl_seconds": downsample(gaps, MAX_SAMPLES),
        },
    }


def _counted(records: Sequence[HttpRequestRecord], good: Sequence[HttpRequestRecord]) -> dict[str, Any]:
    """Count requests by how they ended.

    non_terminal: those that the server did not answer to the end, but for those that were interrupted here.
    empty: those that ended well and in which no token came.
    """
    outcomes = Counter(each.outcome for each in records)
    over = [each for each in records if each.outcome is not Outcome.INTERRUPTED]
    whole = [each for each in over if each.outcome is Outcome.OK]
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
        "miscounted": sum(each.is_miscounted for each in whole),
        "empty": sum(not each.arrivals for each in whole),
        "other_lengths": sum(each.asked_tokens not in (0, each.output_tokens) for each in whole),
        "by_outcome": {name.value: count for name, count in sorted(outcomes.items())},
        "by_status": {str(status): count for status, count in sorted(Counter(each.status for each in over).items())},
        "by_code": dict(sorted(Counter(each.code for each in over if each.code).items())),
        "why": dict(Counter(each.why for each in over if each.why).most_common(5)),
    }
