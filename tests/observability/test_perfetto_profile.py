"""PerfettoProfile: steps, counters and requests become valid events of the trace format."""

import random
from itertools import pairwise
from pathlib import Path

import pytest

from chairlift.observability.perfetto_profile import PHASES, PerfettoProfile, phases_of
from support_traces import check_trace, read_trace, requests_of, steps_of

NUMBERS = {"rows": 3, "tokens": 40, "prefill tokens": 38}


def four(*moments: float) -> list[tuple[float, float]]:
    return [(moments[at], moments[at + 1]) for at in range(0, 8, 2)]


def test_a_step_is_a_slice_with_its_phases_inside(tmp_path: Path) -> None:
    trace = PerfettoProfile(tmp_path / "t.json")
    trace.step("step 0", four(1, 2, 2, 5.5, 6, 7, 7, 7.25), NUMBERS)
    trace.close()
    events = read_trace(tmp_path / "t.json")
    check_trace(events)
    whole, *phases = [event for event in events if event["ph"] == "X"]
    assert (whole["ts"], whole["dur"], whole["args"]) == (1000, 6250, NUMBERS)
    assert [event["name"] for event in phases] == list(PHASES)
    assert [(event["ts"], event["dur"]) for event in phases] == [(1000, 1000), (2000, 3500), (6000, 1000), (7000, 250)]
    assert all(event["args"] == NUMBERS and event["tid"] == whole["tid"] for event in phases)


@pytest.mark.parametrize("depth", [1, 2])
def test_steps_that_overlap_take_tracks_of_their_own(depth: int, tmp_path: Path) -> None:
    """Return phases in the order of the loop: schedule and launch of a step, then collect and commit of the oldest."""
    dice, trace, now = random.Random(depth), PerfettoProfile(tmp_path / "t.json"), 0.0
    flying: list[list[float]] = []
    for number in range(200):
        begin = now
        moments = [begin]
        for _ in range(2):
            now += dice.choice((0.0, dice.random() * 3))
            moments.append(now)
        flying.append([moments[0], moments[1], moments[1], moments[2]])
        if len(flying) == depth:
            marks = [now]
            for _ in range(2):
                now += dice.choice((0.0, dice.random() * 3))
                marks.append(now)
            oldest = flying.pop(0)
            name = f"step {number - depth + 1}"
            trace.step(name, four(*oldest, marks[0], marks[1], marks[1], marks[2]), NUMBERS)
        now += dice.random() * 0.1
    trace.close()
    events = read_trace(tmp_path / "t.json")
    check_trace(events)
    steps = steps_of(events)
    assert len(steps) == 201 - depth and {event["tid"] for event in steps} == set(range(1, depth + 1))
    assert all(first["ts"] <= second["ts"] for first, second in pairwise(steps))
    named = [event["args"]["name"] for event in events if event["name"] == "thread_name" and event["tid"]]
    assert named == ["steps", "steps (2)"][:depth]


def test_counters_are_lines_by_name(tmp_path: Path) -> None:
    trace = PerfettoProfile(tmp_path / "t.json")
    trace.counters(2.5, {"requests": {"running": 3, "waiting": 1}, "free blocks": {"blocks": 9}})
    trace.close()
    events = read_trace(tmp_path / "t.json")
    check_trace(events)
    counters = {event["name"]: (event["ts"], event["args"]) for event in events if event["ph"] == "C"}
    assert counters == {"requests": (2500, {"running": 3, "waiting": 1}), "free blocks": (2500, {"blocks": 9})}


def test_a_request_is_a_track_with_its_phases_one_after_another(tmp_path: Path) -> None:
    trace = PerfettoProfile(tmp_path / "t.json")
    for name in ("same", "other"):
        trace.request(name, [("queued", 1), ("prefill", 2), ("decode", 5)], 9, {"finish_reason": "stop"})
    trace.close()
    events = read_trace(tmp_path / "t.json")
    check_trace(events)
    assert requests_of(events) == {name: ["queued", "prefill", "decode"] for name in ("same", "other")}
    edges = [(event["ph"], event["name"], event["ts"]) for event in events if event.get("id") == "0x1"]
    assert edges == [
        ("b", "same", 1000), ("b", "queued", 1000), ("e", "queued", 2000), ("b", "prefill", 2000),
        ("e", "prefill", 5000), ("b", "decode", 5000), ("e", "decode", 9000), ("e", "same", 9000),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("moments", "phases", "end"),
    [
        ([("queued", 0), ("finished", 3)], [("queued", 0)], 3),
        (
            [("queued", 0), ("waiting_for_prefix", 1), ("scheduled", 2), ("first_token", 4), ("finished", 9)],
            [("queued", 0), ("prefill", 2), ("decode", 4)],
            9,
        ),
        (
            [("queued", 0), ("scheduled", 1), ("first_token", 2), ("preempted", 3), ("scheduled", 5), ("finished", 6)],
            [("queued", 0), ("prefill", 1), ("decode", 2), ("preempted", 3), ("decode", 5)],
            6,
        ),
        (
            [("queued", 0), ("scheduled", 1), ("preempted", 3), ("scheduled", 5), ("first_token", 6), ("finished", 6)],
            [("queued", 0), ("prefill", 1), ("preempted", 3), ("prefill", 5), ("decode", 6)],
            6,
        ),
    ],
)
def test_moments_become_phases(moments: list[tuple[str, float]], phases: list[tuple[str, float]], end: float) -> None:
    assert phases_of(moments) == (phases, end)
