"""Report: a soak as JSON, as a table for people and, where matplotlib is there, as curves."""

import json
import platform
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chairlift import __version__
from soak.sampling import Sample
from soak.verdict import Course, Finding, settled


def write(folder: Path, course: Course, found: Sequence[Finding], more: Mapping[str, Any]) -> str:
    """Write soak.json, soak.txt and, if possible, soak.png into a folder; returns the text."""
    text = table(course, found, more)
    told = {
        **more, "version": __version__, "commit": _commit(), "machine": platform.platform(), "seconds": course.seconds,
        "settle_seconds": course.settle, "requests": course.total, "findings": [asdict(each) for each in found],
        "harms": [asdict(each) for each in course.harms], "samples": [_row(sample) for sample in course.samples],
        "rests": [{**asdict(rest), "sample": _row(rest.sample)} for rest in course.rests],
    }  # fmt: skip
    (folder / "soak.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
    (folder / "soak.txt").write_text(text, encoding="utf-8")
    draw(folder / "soak.png", course)
    return text


def table(course: Course, found: Sequence[Finding], more: Mapping[str, Any]) -> str:
    """Return the report for people."""
    good = all(each.good for each in found)
    lines = [
        f"soak of {course.seconds / 60:.1f} min, seed {more.get('seed')}: {'passed' if good else 'FAILED'}",
        f"{course.total} requests, offered {more.get('rate', 0.0):.1f}/s of {more.get('capacity', 0.0):.1f}/s, "
        f"{course.refused} told to come later, {len(course.rests)} times of rest",
        "",
    ]
    lines += [f"{'ok  ' if each.good else 'FAIL'}  {each.name}: {each.said}" for each in found]
    kinds: Mapping[str, Mapping[str, int]] = more.get("kinds", {})
    if kinds:
        width = max(map(len, kinds))
        lines += ["", "what became of requests"]
        for kind, ends in sorted(kinds.items()):
            told = ", ".join(f"{end} {count}" for end, count in Counter(ends).most_common())
            lines.append(f"  {kind:<{width}}  {sum(ends.values()):6}  {told}")
    return "\n".join(lines) + "\n"


def draw(file: Path, course: Course) -> bool:
    """Draw memory, descriptors and open requests over time; returns whether matplotlib is there to do it."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(11, 9), layout="constrained")
    memory, files, load = figure.subplots(3, 1, sharex=True)
    for name, place in (("API process", "api"), ("engine", "engine")):
        there = [(sample.at / 60, getattr(sample, place)) for sample in course.samples if getattr(sample, place)]
        memory.plot([at for at, _ in there], [each.rss / 2**20 for _, each in there], label=f"{name}, resident")
        memory.plot([at for at, _ in there], [each.uss / 2**20 for _, each in there], "--", label=f"{name}, its own")
        files.plot([at for at, _ in there], [each.descriptors for _, each in there], label=f"{name}, descriptors")
    minutes = [sample.at / 60 for sample in course.samples]
    load.plot(minutes, [sample.metrics.get("open_requests") for sample in course.samples], label="open requests")
    load.plot(minutes, [sample.used_blocks for sample in course.samples], label="blocks in use")
    for axes, unit in ((memory, "MiB"), (files, "descriptors"), (load, "")):
        axes.set_ylabel(unit)
        axes.set_ylim(bottom=0)
        axes.axvline(settled(course) / 60, color="grey", linewidth=0.8, linestyle=":")
        axes.legend(loc="lower right", fontsize="small")
    load.set_xlabel("minutes; the dotted line is where the engine's memory begins to be judged")
    figure.savefig(file, dpi=110)
    return True


def _row(sample: Sample) -> dict[str, Any]:
    kept = ("open_requests", "waiting_requests", "running_requests", "preemptions_total", "output_tokens_total")
    return {**asdict(sample), "metrics": {name: sample.metrics[name] for name in kept if name in sample.metrics}}


def _commit() -> str:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False,
            cwd=Path(__file__).parent,
        )  # fmt: skip
    except OSError:
        return ""
    return done.stdout.strip()
