"""Plots: a report as a PNG; distributions of latency, who ran and waited, and how full the cache was."""

import importlib.util
from collections.abc import Mapping
from typing import Any

from chairlift.core.errors import ConfigError


def check_plot() -> None:
    """Raise ConfigError when matplotlib is not there, before any work."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib: pip install 'chairlift[plot]'", option="plot")


def draw(report: Mapping[str, Any], path: str) -> None:
    """Draw the first arm's middle run of a report. Raises ConfigError when the file cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 9), layout="constrained")
    latency, riders, cache = figure.subplots(3, 1)
    speed = report["output_tokens_per_second"]
    figure.suptitle(f"{report['model']['name']}, {report['workload']['name']}: {speed:.1f} output tokens/s")
    _cumulative(latency, report["samples"])
    _riders(riders, report["timeline"])
    _cache(cache, report["timeline"], report["kv_use"]["total_slots"])
    FigureCanvasAgg(figure)
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None


def _cumulative(axes: Any, samples: Mapping[str, list[float]]) -> None:
    """Share of requests that were done, or had begun, after so many seconds."""
    for name, label in (("latency_seconds", "end"), ("ttft_seconds", "first token")):
        values = samples[name]
        if values:
            shares = [(rank + 1) / len(values) for rank in range(len(values))]
            axes.step(values, shares, where="post", label=label)
            axes.legend(loc="lower right")
    axes.set(xlabel="seconds after arrival", ylabel="share of requests", ylim=(0, 1.02))
    axes.grid(alpha=0.3)


def _riders(axes: Any, timeline: Mapping[str, list[float]]) -> None:
    for name in ("running", "waiting"):
        axes.step(timeline["at"], timeline[name], where="post", label=name)
    axes.set(xlabel="seconds", ylabel="requests", ylim=(0, None))
    axes.legend(loc="upper right")
    axes.grid(alpha=0.3)


def _cache(axes: Any, timeline: Mapping[str, list[float]], total: int) -> None:
    pairs = zip(timeline["held_slots"], timeline["unused_slots"], strict=True)
    used = [held - unused for held, unused in pairs]
    axes.fill_between(timeline["at"], timeline["held_slots"], step="post", alpha=0.4, label="held, unused")
    axes.fill_between(timeline["at"], used, step="post", alpha=0.8, label="held, with tokens")
    axes.set(xlabel="seconds", ylabel=f"token slots of {total}", ylim=(0, None))
    axes.legend(loc="upper right")
    axes.grid(alpha=0.3)
