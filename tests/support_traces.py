"""Checks of traces against Chrome's trace event format, as Perfetto reads it."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

Event = dict[str, Any]

KEYS = {
    "X": {"ph", "pid", "tid", "ts", "dur", "name", "cat", "args"},
    "C": {"ph", "pid", "tid", "ts", "name", "args"},
    "M": {"ph", "pid", "tid", "ts", "name", "args"},
    "b": {"ph", "pid", "tid", "ts", "name", "cat", "id", "args"},
    "e": {"ph", "pid", "tid", "ts", "name", "cat", "id", "args"},
}
METADATA = {"process_name", "thread_name"}


def read_trace(path: Path) -> list[Event]:
    """Read a trace, whose last line may be cut off and whose array may not be closed."""
    text = path.read_text(encoding="utf-8")
    is_whole = text.endswith("]\n")
    events: list[Event] = json.loads(text if is_whole else text[: text.rindex("\n")].rstrip().rstrip(",") + "]")
    return events


def check_trace(events: list[Event]) -> None:
    """Check keys, numbers, nesting and pairs."""
    for event in events:
        assert set(event) == KEYS[event["ph"]], f"wrong keys: {event}"
        assert isinstance(event["ts"], float | int) and event["ts"] >= 0
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int) and isinstance(event["name"], str)
        if event["ph"] == "C":
            assert event["args"] and all(isinstance(value, int | float) for value in event["args"].values())
        if event["ph"] == "M":
            assert event["name"] in METADATA and isinstance(event["args"]["name"], str)
    _check_nesting([event for event in events if event["ph"] == "X"])
    _check_pairs([event for event in events if event["ph"] in "be"])
    for name in {event["name"] for event in events if event["ph"] == "C"}:
        times = [event["ts"] for event in events if event["ph"] == "C" and event["name"] == name]
        assert times == sorted(times), f"counter {name} goes back in time"


def _check_nesting(slices: list[Event]) -> None:
    """Check that a slice is entirely inside or entirely outside each other slice of its track."""
    tracks = defaultdict(list)
    for event in slices:
        begin = round(event["ts"] * 1000)
        assert event["dur"] >= 0
        tracks[event["pid"], event["tid"]].append((begin, begin + round(event["dur"] * 1000), event["name"]))
    for spans in tracks.values():
        enclosing: list[tuple[int, int, str]] = []
        for span in sorted(spans, key=lambda span: (span[0], -span[1])):
            while enclosing and enclosing[-1][1] <= span[0] and span[1] > enclosing[-1][1]:
                enclosing.pop()
            assert not enclosing or span[1] <= enclosing[-1][1], f"{span} crosses {enclosing[-1]}"
            enclosing.append(span)


def _check_pairs(events: list[Event]) -> None:
    """Check that the begin and end events of each id are nested and in order of time."""
    by_id = defaultdict(list)
    for event in events:
        by_id[event["pid"], event["cat"], event["id"]].append(event)
    for events_of_id in by_id.values():
        times = [event["ts"] for event in events_of_id]
        assert times == sorted(times)
        open_names: list[str] = []
        for event in events_of_id:
            if event["ph"] == "b":
                open_names.append(event["name"])
            else:
                assert open_names.pop() == event["name"]
        assert open_names == []


def steps_of(events: list[Event]) -> list[Event]:
    """Return the slices of whole steps, in the order in which they were written."""
    return [event for event in events if event["ph"] == "X" and event["name"].startswith("step ")]


def requests_of(events: list[Event]) -> dict[str, list[str]]:
    """Return the phases of each request, by its name."""
    names: dict[str, str] = {}
    phases: dict[str, list[str]] = {}
    for event in events:
        if event["ph"] == "b" and event["id"] not in names:
            names[event["id"]] = event["name"]
            phases[event["name"]] = []
        elif event["ph"] == "b":
            phases[names[event["id"]]].append(event["name"])
    return phases
