"""Server reports: the results of a server benchmark as JSON and as a printed table.

kind, schema, complete    "chairlift bench serve", version of this layout, False after Ctrl-C
server, model, asked      its address, the model's name on it, and the format of the requests
phases                    results of each phase; summarize_phase() describes the fields
overload                  with --overload: share of the peak, rejections, memory, recovery, and limits that were not met
environment               of the generator's machine: commit, versions, hardware
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from chairlift.bench.offline.run_spec import WorkloadSpec
from chairlift.bench.report.report import with_environment
from chairlift.bench.report.text_table import text_table
from chairlift.bench.server.api_requests import RequestFormat
from chairlift.bench.server.benchmark_plan import BenchmarkPlan
from chairlift.bench.server.server_benchmark import ServerBenchmark

KIND = "chairlift bench serve"
LATE_SECONDS = 0.02
"""A generator that sends or reads later than this (p99) distorts the results; the table has a remark then."""

STILL_SECONDS = 0.1
"""A single stall of the generator that is longer than this gets a remark, too."""

BUSY_SHARE = 0.9
"""A generator that used more than this share of a core gets a remark, too."""


def assembled(
    serving: ServerBenchmark, *, plan: BenchmarkPlan, style: RequestFormat, spec: WorkloadSpec, url: str,
    complete: bool,
    source: Mapping[str, Any], words: Sequence[str],
) -> dict[str, Any]:  # fmt: skip
    """Build a report; report.with_environment() describes `source` and `words`."""
    results = {
        "complete": complete,
        "server": {"url": url},
        "model": {"name": style.model},
        "asked": {"path": style.path, **asdict(style), "timeout": plan.timeout, "slo": dict(plan.slo.limits)},
        "seed": spec.seed,
        "workload": spec.shown(),
        "phases": serving.phases,
        "overload": serving.overload(),
    }
    return with_environment(KIND, results, source, words)


def is_successful(report: Mapping[str, Any]) -> bool:
    """Return whether no request failed, none got a 5xx status, and the overload limits held."""
    counts = [phase["requests"] for phase in report["phases"]]
    overload = report["overload"]
    return not any(each["failed"] or each["server_errors"] for each in counts) and (
        overload is None or bool(overload["held"])
    )


LEAST_IMPORTANT_FIRST = ("tpot p50", "ttft p50", "itl p99", "e2e p99", "tpot p99", "429/503", "failed")
"""Columns in the order in which a narrow table leaves them out."""


def table(report: Mapping[str, Any], columns: int | None = None) -> Iterator[str]:
    """Yield the lines of the printed table; where `columns` are too few, it leaves out LEAST_IMPORTANT_FIRST."""
    phases = report["phases"]
    width = max((len(phase["name"]) for phase in phases), default=0)
    cells = [_cells(phase) for phase in phases]
    yield from text_table(cells, left={"load"}, columns=columns, least_important_first=LEAST_IMPORTANT_FIRST)
    for phase in phases:
        yield from _remarks(phase)
    if report["overload"] is not None:
        yield from _verdict(report["overload"], width)
    if not report["complete"]:
        yield "interrupted: these are the results until then"


def _cells(phase: Mapping[str, Any]) -> dict[str, str]:
    counts = phase["requests"]
    return {
        "load": phase["name"], "sent/s": _n(phase["sent_per_second"], 0, 1),
        "good/s": _n(phase["goodput_per_second"], 0, 1), "tok/s": _n(phase["output_tokens_per_second"], 0, 0),
        "ok": f"{counts['ok']}", "429/503": f"{counts['refused']}", "failed": f"{counts['failed']}",
        "ttft p50": _ms(phase["ttft_seconds"]["p50"]), "ttft p99": _ms(phase["ttft_seconds"]["p99"]),
        "tpot p50": _ms(phase["tpot_seconds"]["p50"]), "tpot p99": _ms(phase["tpot_seconds"]["p99"]),
        "itl p99": _ms(phase["itl_seconds"]["p99"]), "e2e p99": f"{_n(phase['e2e_seconds']['p99'], 0, 2)}s",
    }  # fmt: skip


def _remarks(phase: Mapping[str, Any]) -> Iterator[str]:
    """Yield remarks on the numbers of a phase."""
    counts, name, generator = phase["requests"], phase["name"], phase["generator"]
    if counts["by_code"]:
        codes = ", ".join(f"{count} {code}" for code, count in counts["by_code"].items())
        yield f"{name}: {codes}"
    if (refusal := phase["refusal_seconds"]["p99"]) is not None:
        yield f"{name}: rejections after {_ms(phase['refusal_seconds']['p50'])} (p50), {_ms(refusal)} (p99)"
    if counts["refused_without_retry_after"]:
        yield f"{name}: {counts['refused_without_retry_after']} rejections without Retry-After"
    for why, count in counts["why"].items():
        yield f"{name}: {count} x {why}"
    if counts["miscounted"]:
        yield f"{name}: {counts['miscounted']} responses had another number of tokens than the server's usage"
    if counts["empty"]:
        yield f"{name}: {counts['empty']} responses had no token and do not count as good"
    if counts["other_lengths"]:
        yield f"{name}: {counts['other_lengths']} responses did not have the requested length"
    late = {"sent": generator["send_lag_seconds"]["p99"], "read": generator["loop_lag_seconds"]["p99"]}
    for what, seconds in late.items():
        if seconds is not None and seconds > LATE_SECONDS:
            yield f"{name}: the generator {what} {_ms(seconds)} late (p99), which distorts these numbers"
    if (still := generator["loop_lag_seconds"]["max"]) is not None and still > STILL_SECONDS:
        yield f"{name}: the generator stalled for {_ms(still)} once"
    if generator["cpu_share"] > BUSY_SHARE:
        yield f"{name}: the generator used {generator['cpu_share']:.0%} of a core while it sent"


def _verdict(overload: Mapping[str, Any], width: int) -> Iterator[str]:
    capacity, peak = overload["capacity_per_second"], overload["peak_good_tokens_per_second"]
    probe = _ms(overload["probe_seconds"])
    measured = f"capacity {capacity:.1f} requests/s, peak goodput {peak:.0f} tokens/s, a probe takes {probe}"
    yield f"{overload['mode']}: {measured}"
    yield (
        f"{'':<{width}} {'of peak':>8} {'reject p99':>12} {'memory':>7} {'5xx':>5} {'no end':>7} {'normal after':>13}"
    )
    for row in overload["rows"]:
        recovery = row["recovery_seconds"]
        yield (
            f"{row['name']:<{width}} {row['goodput_share']:>8.0%} {_ms(row['refusal_p99_seconds'], 12)} "
            f"{_n(row['memory_ratio'], 7, 2)} {row['server_errors']:>5} {row['non_terminal']:>7} "
            f"{'never' if recovery is None else f'{recovery:.1f} s':>13}"
        )
    for row in overload["rows"]:
        yield from (f"not met at {row['name']}: {what}" for what in row["missed"])


def _n(value: float | None, width: int, digits: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:>{width}.{digits}f}"


def _ms(seconds: float | None, width: int = 0) -> str:
    return f"{'-' if seconds is None else f'{seconds * 1000:.1f}ms':>{width}}"
