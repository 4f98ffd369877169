"""Reports: the results of a benchmark with environment and commit, as JSON and as a printed table.

    kind, schema         "chairlift bench offline", version of this layout
    output_tokens_per_second ... kv_cache_usage, kv_cache_waste, timeline, samples
                         of the first arm's median run (by throughput); see request_records.py, step_recorder.py
    arms                 of every arm: name, options, and every run without its timeline and samples
    ratios               of several arms: medians, and the first arm's medians over each arm's
    workload, model      name, seed, digest, tokens; name and shape
    environment          commit, whether src was dirty or changed during the run, versions, hardware
    seed, command        the command line without paths

Percentiles interpolate linearly. Means of kv_cache_usage and kv_cache_waste are weighted by the steps' duration.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chairlift.bench.offline.comparison import ArmRuns, ratios
from chairlift.bench.offline.run_spec import RunSpec
from chairlift.bench.report import environment, model_size_fields
from chairlift.bench.report.redaction import redacted_model, shown_command, shown_options
from chairlift.bench.report.text_table import text_table

KIND = "chairlift bench offline"
SCHEMA = 2
LARGE_FIELDS = ("timeline", "samples")


def with_environment(
    kind: str, results: Mapping[str, Any], source: Mapping[str, Any], words: Sequence[str], *, of_host: bool = True
) -> dict[str, Any]:
    """Add the fields that every report has to the results; see build_report() for the arguments.

    `of_host` is False for results that do not depend on the host.
    """
    return {
        "kind": kind,
        "schema": SCHEMA,
        **results,
        "environment": environment.environment(source, of_host=of_host),
        "command": shown_command(["chairlift", *words]),
    }


def build_report(
    spec: RunSpec, all_runs: Sequence[ArmRuns], source: Mapping[str, Any], words: Sequence[str]
) -> dict[str, Any]:
    """Build a report.

    `source` is environment.source() at the start, `words` are the command line's arguments.
    """
    first = all_runs[0].median_run()
    results = {
        **{name: value for name, value in first.items() if name not in ("workload_digest", "workload_tokens")},
        "arms": [
            {
                "name": each.arm.name,
                "options": shown_options(each.arm.options),
                "runs": [_without_large_fields(run) for run in each.runs],
            }
            for each in all_runs
        ],
        "ratios": ratios(all_runs) if len(all_runs) > 1 else [],
        "seed": spec.workload.seed,
        "workload": {
            **spec.workload.shown(),
            "requests": first["requests"]["total"],
            "tokens": first["workload_tokens"],
            "digest": first["workload_digest"],
        },
        "model": {"name": redacted_model(spec.model), "shape": model_size_fields.model_shape(spec.model)},
        "options": shown_options(spec.options),
    }
    return with_environment(KIND, results, source, words)


def _without_large_fields(run: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in run.items() if name not in LARGE_FIELDS}


# -- printed table -----------------------------------------------------------------------------------------------------


def table(report: Mapping[str, Any], columns: int | None = None) -> Iterator[str]:
    """Return the lines of the printed table: several for one arm, or one line for each of several arms.

    Where `columns` are too few for the latter, it leaves out some values.
    """
    yield from _comparison_lines(report["ratios"], columns) if report["ratios"] else _single_run_lines(report)


def _single_run_lines(report: Mapping[str, Any]) -> Iterator[str]:
    requests, tokens, spread = report["requests"], report["tokens"], len(report["arms"][0]["runs"])
    of_runs = f" (the median of {spread} runs)" if spread > 1 else ""
    yield f"{requests['completed']} of {requests['total']} requests in {report['seconds']:.2f} s{of_runs}"
    yield (
        f"{report['output_tokens_per_second']:.1f} output tokens/s, {report['total_tokens_per_second']:.1f} in all; "
        f"{tokens['prompt']} prompt tokens ({tokens['cached']} cached), {tokens['output']} output tokens"
    )
    yield f"{'seconds':<12} {'mean':>9} {'p50':>9} {'p90':>9} {'p99':>9}"
    for name in ("latency", "ttft", "itl"):
        spans = report[f"{name}_seconds"]
        yield f"{name:<12} " + " ".join(_number(spans[key], 9, 4) for key in ("mean", "p50", "p90", "p99"))
    use, waste = report["kv_cache_usage"], report["kv_cache_waste"]
    yield (
        f"{report['steps']} steps, {report['preemptions']} preemptions, at most {report['peak_running_requests']} "
        f"running; KV cache {_percent(use['mean'])} held (peak {_percent(use['peak'])}), of that "
        f"{_percent(waste['mean'])} unused"
    )


def _comparison_lines(rows: Sequence[Mapping[str, Any]], columns: int | None) -> Iterator[str]:
    name = rows[0]["arm"]
    cells = [{
        "arm": row["arm"], "output tok/s": _number(row["output_tokens_per_second"], 0, 1),
        "total tok/s": _number(row["total_tokens_per_second"], 0, 1),
        "p99 latency": _number(row["latency_seconds.p99"], 0, 3), "mean ttft": _number(row["ttft_seconds.mean"], 0, 3),
        "speed": _number(row["first_over_this.output_tokens_per_second"], 0, 2),
        "p99": _number(row["first_over_this.latency_seconds.p99"], 0, 2), "failed": f"{row['failed']}",
    } for row in rows]  # fmt: skip
    yield from text_table(
        cells, left={"arm"}, columns=columns, least_important_first=("total tok/s", "mean ttft", "p99", "failed")
    )
    yield f"medians of {len(rows[0]['by_turn'])}; speed and p99: {name} over each"


def _number(value: float | None, width: int, digits: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:>{width}.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
