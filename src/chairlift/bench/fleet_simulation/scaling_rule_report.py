"""build_fleet_report: the results of a simulated fleet as a report and as a printed table.

load, machine, fleet     what was simulated
capacity                 requests per second at which one replica reaches the goal
arms                     each variant of each rule with its cost and its SLO attainment
savings                  the default autoscaler against static provisioning and the oracle
against                  the default autoscaler against the best variant of another rule, at equal cost (at most 2 %
                         more) and at equal SLO attainment; null where no variant is as cheap, or as good
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from chairlift.bench.fleet_simulation.scaling_rule_comparison import FleetArm, FleetLoad
from chairlift.bench.report.text_table import text_table

EQUAL_COST_RATIO = 1.02
"""A rule is as cheap as another one if it costs at most this many times as much."""

LEAST_IMPORTANT_FIRST = ("rev.", "down", "up", "cost", "peak", "queue", "mean")
"""Columns in the order in which a narrow table leaves them out."""

EQUAL_SLO = 1e-3
"""A rule is as good as another one if its SLO attainment is at most this much lower."""


def build_fleet_report(
    load: FleetLoad, arms: Sequence[FleetArm], capacity: float, price_per_hour: float
) -> dict[str, Any]:
    """Return the fields of the report that load, settings and seed determine."""
    arrivals, options, machine = load.arrivals, load.options, load.options.machine
    rows = [{"rule": arm.rule, "parameter": arm.parameter, **arm.result.report(price_per_hour)} for arm in arms]
    rates = arrivals.rates(60.0)
    return {
        "load": {
            "name": arrivals.name, "requests": len(arrivals.at), "seconds": arrivals.seconds,
            "mean_requests_per_second": len(arrivals.at) / arrivals.seconds,
            "peak_requests_per_second": float(max(rates)),
            "prompt_tokens": int(arrivals.prompt_tokens.sum()), "output_tokens": int(arrivals.output_tokens.sum()),
        },
        "machine": {
            "step_times": asdict(machine.step_model), "num_blocks": machine.num_blocks,
            "block_size": machine.block_size, "uses_engine": machine.uses_engine,
        },
        "engine": asdict(machine.config),
        "fleet": {
            "max_replicas": options.max_replicas, "min_replicas": load.min_replicas,
            "initial_replicas": options.initial_replicas, "cold_start_seconds": list(options.cold_start_seconds),
            "policy": options.policy, "price_per_hour": price_per_hour, "seed": options.seed,
            "slo": options.slo, "slo_goal": load.slo_goal,
        },
        "capacity": {"requests_per_second": capacity},
        "arms": rows,
        **_comparisons(rows),
    }  # fmt: skip


def _comparisons(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the comparisons of the first arm of the autoscaler with the others."""
    ours = next((row for row in rows if row["rule"] == "autoscaler"), None)
    if ours is None:
        return {"savings": {}, "against": {}}
    savings = {
        row["rule"]: 1 - ours["replica_hours"] / row["replica_hours"]
        for row in rows if row["rule"] in ("static", "oracle")
    }  # fmt: skip
    against = {}
    for name in ("hpa", "threshold"):
        variants = [row for row in rows if row["rule"] == name]
        cheap = [row for row in variants if row["replica_hours"] <= EQUAL_COST_RATIO * ours["replica_hours"]]
        good = [row for row in variants if row["slo_attainment"] >= ours["slo_attainment"] - EQUAL_SLO]
        if variants:
            against[name] = {
                "at_equal_cost": _short(max(cheap, key=lambda row: row["slo_attainment"], default=None)),
                "at_equal_slo": _short(min(good, key=lambda row: row["replica_hours"], default=None)),
            }
    return {"savings": savings, "against": against}


def _short(row: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if row is None else {name: row[name] for name in ("parameter", "slo_attainment", "replica_hours")}


def fleet_table(report: Mapping[str, Any], columns: int | None = None) -> Iterator[str]:
    """Return the lines of the printed table; where `columns` are too few, it leaves out LEAST_IMPORTANT_FIRST."""
    load, fleet = report["load"], report["fleet"]
    slo = ", ".join(f"{name} {limit:g} s" for name, limit in fleet["slo"].items()) or "none"
    yield (
        f"{load['requests']} requests ({load['name']}) in {load['seconds']:.0f} s, "
        f"{load['mean_requests_per_second']:.1f} a second, {load['peak_requests_per_second']:.1f} at the peak; "
        f"one replica serves {report['capacity']['requests_per_second']:.2f} a second"
    )
    yield f"SLO: {slo}; goal {fleet['slo_goal']:.1%}; at most {fleet['max_replicas']} replicas"
    yield from text_table(
        [_arm_cells(arm) for arm in report["arms"]], left={"rule", "parameter"}, columns=columns,
        least_important_first=LEAST_IMPORTANT_FIRST,
    )  # fmt: skip
    for name, saving in report["savings"].items():
        yield f"autoscaler against {name}: {abs(saving):.1%} {'fewer' if saving >= 0 else 'more'} replica-hours"
    for name, pair in report["against"].items():
        for words, key in (("at equal cost", "at_equal_cost"), ("at equal SLO", "at_equal_slo")):
            row = pair[key]
            shown = f"SLO {row['slo_attainment']:.2%}, {row['replica_hours']:.2f} hours" if row else "no variant"
            yield f"{name} {words}: {shown}"


def _arm_cells(arm: Mapping[str, Any]) -> dict[str, str]:
    return {
        "rule": arm["rule"], "parameter": arm["parameter"], "SLO": f"{arm['slo_attainment']:.2%}",
        "hours": f"{arm['replica_hours']:.2f}", "cost": f"{arm['cost']:.2f}", "mean": f"{arm['mean_replicas']:.1f}",
        "peak": f"{arm['peak_replicas']}", "queue": f"{arm['max_waiting_requests']}", "up": f"{arm['growths']}",
        "down": f"{arm['shrinkings']}", "rev.": f"{arm['reversals']}",
        "ttft p99": f"{arm['ttft_seconds']['p99'] or 0:.2f}", "tpot p99": f"{arm['tpot_seconds']['p99'] or 0:.3f}",
    }  # fmt: skip
