"""Plots: draws a report as a PNG, with latencies, requests and cache of one arm, or bars of several arms."""

import functools
import importlib.util
import io
from collections.abc import Mapping
from typing import Any

from chairlift.bench.peers.registry import OWN_NAME
from chairlift.core.errors import ConfigError
from chairlift.core.file_writes import write_whole


def check_plot() -> None:
    """Check that matplotlib is installed.

    Raises ConfigError when it is not.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib: pip install 'chairlift[plot]'", option="plot")


def draw(report: Mapping[str, Any], path: str) -> None:
    """Draw a report: its arms side by side, or the median run of its only arm.

    Raises FileNotWritten.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    several = len(report["arms"]) > 1
    figure = Figure(figsize=(9, 2 + 0.5 * len(report["arms"])) if several else (9, 9), layout="constrained")
    about = f"{report['model']['name']}, {report['workload']['name']}"
    if several:
        figure.suptitle(f"{about}: medians of {len(report['arms'][0]['runs'])} runs, and each run")
        speed, first = figure.subplots(1, 2, sharey=True)
        _bars(speed, report, ("output_tokens_per_second",), "output tokens/s")
        _bars(first, report, ("ttft_seconds", "mean"), "mean seconds to the first token")
        speed.invert_yaxis()
    else:
        figure.suptitle(f"{about}: {report['output_tokens_per_second']:.1f} output tokens/s")
        latency, requests, cache = figure.subplots(3, 1)
        _cumulative(latency, report["samples"])
        _requests(requests, report["timeline"])
        _cache(cache, report["timeline"], report["kv_cache_usage"]["total_kv_tokens"])
    FigureCanvasAgg(figure)
    image = io.BytesIO()
    figure.savefig(image, format="png")
    write_whole(path, image.getvalue())


def _bars(axes: Any, report: Mapping[str, Any], path: tuple[str, ...], label: str) -> None:
    """Draw a bar for each arm's median, and a dot for each of its runs."""
    longest = 0.0
    for position, (arm, row) in enumerate(zip(report["arms"], report["ratios"], strict=True)):
        median = row[".".join(path)]
        all_values = [functools.reduce(lambda node, key: node[key], path, run) for run in arm["runs"]]
        values = [value for value in all_values if value is not None]
        end = max([*values, median or 0.0])
        axes.barh(
            position, median or 0.0, color="C0" if arm.get("options") or arm["name"] == OWN_NAME else "C1", alpha=0.7
        )
        axes.plot(values, [position] * len(values), "k.", markersize=4)
        text = "?" if median is None else f"{median:.0f}" if median >= 100 else f"{median:.3g}"
        axes.annotate(f"  {text}", (end, position), va="center", fontsize=8)
        longest = max(longest, end)
    axes.set(xlabel=label, xlim=(0, 1.15 * longest or 1.0), yticks=range(len(report["arms"])))
    axes.set_yticklabels([arm["name"] for arm in report["arms"]])
    axes.grid(alpha=0.3, axis="x")


def _cumulative(axes: Any, samples: Mapping[str, list[float]]) -> None:
    """Draw the shares of requests with a first token and of finished ones, over time from arrival."""
    for name, label in (("latency_seconds", "end"), ("ttft_seconds", "first token")):
        values = samples[name]
        if values:
            shares = [(rank + 1) / len(values) for rank in range(len(values))]
            axes.step(values, shares, where="post", label=label)
            axes.legend(loc="lower right")
    axes.set(xlabel="seconds after arrival", ylabel="share of requests", ylim=(0, 1.02))
    axes.grid(alpha=0.3)


def _requests(axes: Any, timeline: Mapping[str, list[float]]) -> None:
    for name in ("running", "waiting"):
        axes.step(timeline["at"], timeline[name], where="post", label=name)
    axes.set(xlabel="seconds", ylabel="requests", ylim=(0, None))
    axes.legend(loc="upper right")
    axes.grid(alpha=0.3)


def _cache(axes: Any, timeline: Mapping[str, list[float]], total: int) -> None:
    pairs = zip(timeline["allocated_kv_tokens"], timeline["unused_kv_tokens"], strict=True)
    used = [held - unused for held, unused in pairs]
    axes.fill_between(timeline["at"], timeline["allocated_kv_tokens"], step="post", alpha=0.4, label="held, unused")
    axes.fill_between(timeline["at"], used, step="post", alpha=0.8, label="held, with tokens")
    axes.set(xlabel="seconds", ylabel=f"token slots of {total}", ylim=(0, None))
    axes.legend(loc="upper right")
    axes.grid(alpha=0.3)
