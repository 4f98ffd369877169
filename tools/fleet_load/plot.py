"""plot: the load, the replicas and the time to the first token over time."""

from pathlib import Path
from typing import Any


def plot(result: dict[str, Any], file: Path) -> None:
    """Write a PNG of a result."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (load, replicas, waits) = pyplot.subplots(3, 1, sharex=True, figsize=(9, 7), layout="constrained")
    at = 0.0
    for seconds, rate in result["phases"]:
        load.plot([at, at + seconds], [rate, rate], color="C0")
        at += seconds
    load.set_ylabel("requests/s (set)")
    times = [each["at"] for each in result["series"]]
    names = ("ready", "starting", "draining")
    replicas.stackplot(times, *([each[name] for each in result["series"]] for name in names), labels=names, step="post")
    replicas.step(times, [each["target"] for each in result["series"]], where="post", color="black", label="target")
    replicas.set_ylabel("replicas")
    replicas.legend(loc="upper right", fontsize="small")
    good = [each for each in result["responses"] if not each.error and each.first_token_seconds is not None]
    waits.scatter([each.sent_at for each in good], [each.first_token_seconds for each in good], s=2)
    waits.set_ylabel("TTFT (s)")
    waits.set_xlabel("seconds")
    for kill in result["kills"]:
        for axis in (replicas, waits):
            axis.axvline(kill, color="red", linewidth=0.5)
    figure.savefig(file, dpi=90)
