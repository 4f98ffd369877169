"""summary: the figures of a run."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from chairlift.bench.report.percentiles import percentile
from fleet_load.open_loop_client import Phase, Response


def summary(
    responses: Sequence[Response],
    series: Sequence[dict[str, Any]],
    phases: Sequence[Phase],
    slo_ttft: float,
    stop_seconds: float,
) -> dict[str, Any]:
    """Return the figures of a run by name.

    `within_slo` is the share of all requests whose first token came within `slo_ttft` seconds. In
    `within_slo_outside_cold_starts` those are left out that were sent in the first two cold starts after a rise of the
    rate, because no replica can be there by then.
    """
    complete = [each for each in responses if not each.error]
    seconds = sorted(each.seconds for each in complete)
    first = sorted(each.first_token_seconds for each in complete if each.first_token_seconds is not None)
    errors: dict[str, int] = {}
    for each in responses:
        if each.error:
            errors[each.error] = errors.get(each.error, 0) + 1
    cold_start = longest_increase(series)
    excluded = [(at, at + 2 * cold_start) for at in _rises(phases)]
    settled = [each for each in responses if not any(begin <= each.sent_at < end for begin, end in excluded)]
    return {
        "requests": len(responses), "failed": len(responses) - len(complete), "errors": errors,
        "requests_per_second": round(len(responses) / sum(phase.seconds for phase in phases), 2),
        "mean_seconds": round(sum(seconds) / len(seconds), 4) if seconds else None,
        "p50_seconds": _percentile(seconds, 50), "p99_seconds": _percentile(seconds, 99),
        "ttft_p50_seconds": _percentile(first, 50), "ttft_p99_seconds": _percentile(first, 99),
        "within_slo": _within(responses, slo_ttft), "cold_start_seconds": round(cold_start, 1),
        "within_slo_outside_cold_starts": _within(settled, slo_ttft),
        "availability": round(len(complete) / max(1, len(responses)), 6), "stop_seconds": round(stop_seconds, 2),
    }  # fmt: skip


def longest_increase(series: Iterable[dict[str, Any]]) -> float:
    """Return the most seconds from a rise of the target until that many replicas were ready; 0 without a rise."""
    longest, target, risen_at = 0.0, None, None
    for each in series:
        if target is not None and each["target"] > target:
            risen_at = each["at"]
        target = each["target"]
        if risen_at is not None and each["ready"] >= target:
            longest, risen_at = max(longest, each["at"] - risen_at), None
    return longest


def by_second(responses: Iterable[Response]) -> list[dict[str, Any]]:
    """Return the requests of each second: how many, how many failed, median and worst time to the first token."""
    seconds: dict[int, list[Response]] = {}
    for each in responses:
        seconds.setdefault(int(each.sent_at), []).append(each)
    rows = []
    for second, sent in sorted(seconds.items()):
        first = sorted(each.first_token_seconds for each in sent if each.first_token_seconds is not None)
        rows.append({
            "at": second, "sent": len(sent), "failed": sum(bool(each.error) for each in sent),
            "ttft_p50": _percentile(first, 50), "ttft_max": _percentile(first, 100),
        })  # fmt: skip
    return rows


def dump(result: dict[str, Any]) -> str:
    """Return a result as JSON with one line for each row of its series."""
    lines = []
    for name, value in result.items():
        rows = ",\n  ".join(map(json.dumps, value)) if isinstance(value, list) and value else None
        lines.append(f" {json.dumps(name)}: " + (json.dumps(value) if rows is None else f"[\n  {rows}\n ]"))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _rises(phases: Sequence[Phase]) -> list[float]:
    ends = [sum(phase.seconds for phase in phases[:count]) for count in range(1, len(phases))]
    return [end for end, before, after in zip(ends, phases, phases[1:], strict=False) if after.rate > before.rate]


def _within(responses: Sequence[Response], seconds: float) -> float | None:
    """Return the share of the requests whose first token came in time; a failed one did not."""
    if not responses:
        return None
    in_time = [
        each for each in responses
        if not each.error and each.first_token_seconds is not None and each.first_token_seconds <= seconds
    ]  # fmt: skip
    return round(len(in_time) / len(responses), 5)


def _percentile(values: list[float], share: float) -> float | None:
    return round(percentile(values, share), 4) if values else None
