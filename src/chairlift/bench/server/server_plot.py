"""Server plots: draws latencies and rates of each phase of a server benchmark."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from chairlift.core.file_writes import write_whole


def draw(report: Mapping[str, Any], path: str) -> None:
    """Draw a report as a PNG.

    Raises FileNotWritten.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 9), layout="constrained")
    first, whole, rates = figure.subplots(3, 1)
    figure.suptitle(f"{report['model']['name']}, {report['workload']['name']}")
    phases = report["phases"]
    _cumulative(first, phases, "ttft_seconds", "seconds from the due time to the first token")
    _cumulative(whole, phases, "e2e_seconds", "seconds from the due time to the end")
    _rates(rates, phases)
    FigureCanvasAgg(figure)
    image = io.BytesIO()
    figure.savefig(image, format="png")
    write_whole(path, image.getvalue())


def _cumulative(axes: Any, phases: Sequence[Mapping[str, Any]], name: str, label: str) -> None:
    for phase in phases:
        values = phase["samples"][name]
        if values:
            shares = [(rank + 1) / len(values) for rank in range(len(values))]
            axes.step(values, shares, where="post", label=phase["name"])
            axes.legend(loc="lower right")
    axes.set(xlabel=label, ylabel="share of requests", ylim=(0, 1.02))
    axes.grid(alpha=0.3)


def _rates(axes: Any, phases: Sequence[Mapping[str, Any]]) -> None:
    positions = range(len(phases))
    for name, label in (("sent_per_second", "sent"), ("goodput_per_second", "good")):
        axes.plot(positions, [phase[name] or 0.0 for phase in phases], marker="o", label=label)
    axes.set_xticks(list(positions), [phase["name"] for phase in phases])
    axes.set(ylabel="requests a second", ylim=(0, None))
    axes.legend(loc="upper left")
    axes.grid(alpha=0.3)
