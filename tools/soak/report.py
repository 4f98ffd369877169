"""Report of a soak test: JSON, a text for people and, if matplotlib is installed, curves."""

import json
import platform
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chairlift import __version__
from soak.server_samples import ServerSample
from soak.soak_result import SoakResult
from soak.verdict import Finding, engine_settled_at

KEPT_METRICS = (
    "requests_open", "admission_waiting_requests", "sequences_running", "preemptions_total", "output_tokens_total",
)  # fmt: skip
"""Metrics that each sample in soak.json has."""


def write_report(folder: Path, result: SoakResult, findings: Sequence[Finding], more: Mapping[str, Any]) -> str:
    """Write soak.json, soak.txt and, if possible, soak.png into a folder; returns the text."""
    text = format_report(result, findings, more)
    report = {
        **more, "version": __version__, "commit": _commit(), "machine": platform.platform(), "seconds": result.seconds,
        "settle_seconds": result.settle_seconds, "requests": result.num_requests,
        "findings": [asdict(each) for each in findings], "faults": [asdict(each) for each in result.faults],
        "samples": [_sample_json(sample) for sample in result.samples],
        "idle_samples": [{**asdict(idle), "sample": _sample_json(idle.sample)} for idle in result.idle_samples],
    }  # fmt: skip
    (folder / "soak.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    (folder / "soak.txt").write_text(text, encoding="utf-8")
    plot(folder / "soak.png", result)
    return text


def format_report(result: SoakResult, findings: Sequence[Finding], more: Mapping[str, Any]) -> str:
    """Return the report as text."""
    passed = all(each.passed for each in findings)
    lines = [
        f"soak of {result.seconds / 60:.1f} min, seed {more.get('seed')}: {'passed' if passed else 'FAILED'}",
        f"{result.num_requests} requests, {more.get('rate', 0.0):.1f}/s sent of a capacity of "
        f"{more.get('capacity', 0.0):.1f}/s, {result.num_rejected} rejected with 429, "
        f"{len(result.idle_samples)} idle samples",
        "",
    ]
    lines += [f"{'ok  ' if each.passed else 'FAIL'}  {each.name}: {each.details}" for each in findings]
    kinds: Mapping[str, Mapping[str, int]] = more.get("kinds", {})
    if kinds:
        width = max(map(len, kinds))
        lines += ["", "results of the requests by kind"]
        for kind, counts in sorted(kinds.items()):
            results = ", ".join(f"{name} {count}" for name, count in Counter(counts).most_common())
            lines.append(f"  {kind:<{width}}  {sum(counts.values()):6}  {results}")
    return "\n".join(lines) + "\n"


def plot(file: Path, result: SoakResult) -> bool:
    """Plot memory, descriptors and open requests over time; returns False if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(11, 9), layout="constrained")
    memory, files, load = figure.subplots(3, 1, sharex=True)
    for name, field in (("API process", "api"), ("engine", "engine")):
        processes = [(sample.at / 60, process) for sample in result.samples if (process := getattr(sample, field))]
        minutes = [at for at, _ in processes]
        memory.plot(minutes, [each.rss / 2**20 for _, each in processes], label=f"{name}, resident")
        memory.plot(minutes, [each.uss / 2**20 for _, each in processes], "--", label=f"{name}, not shared")
        files.plot(minutes, [each.descriptors for _, each in processes], label=f"{name}, descriptors")
    minutes = [sample.at / 60 for sample in result.samples]
    load.plot(minutes, [sample.metrics.get("requests_open") for sample in result.samples], label="open requests")
    load.plot(minutes, [sample.used_blocks for sample in result.samples], label="blocks in use")
    for axes, unit in ((memory, "MiB"), (files, "descriptors"), (load, "")):
        axes.set_ylabel(unit)
        axes.set_ylim(bottom=0)
        axes.axvline(engine_settled_at(result) / 60, color="grey", linewidth=0.8, linestyle=":")
        axes.legend(loc="lower right", fontsize="small")
    load.set_xlabel("minutes; the engine's memory is judged from the dotted line on")
    figure.savefig(file, dpi=110)
    return True


def _sample_json(sample: ServerSample) -> dict[str, Any]:
    metrics = {name: sample.metrics[name] for name in KEPT_METRICS if name in sample.metrics}
    return {**asdict(sample), "metrics": metrics}


def _commit() -> str:
    try:
        completed = subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False,
            cwd=Path(__file__).parent,
        )  # fmt: skip
    except OSError:
        return ""
    return completed.stdout.strip()
