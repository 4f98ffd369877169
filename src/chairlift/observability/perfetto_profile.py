"""PerfettoProfile: writes steps, counters and requests as events of Chrome's trace event format, for Perfetto.

    process "engine"     track "steps"       step 7 ─────────────────────────────  one slice a step, its phases inside
                                              schedule launch    collect    commit
                         track "steps (2)"    steps that overlap those, when two steps are in flight
                         counters             requests {running, waiting}, free blocks, unused slots
    process "requests"   one track each       queued ─ prefill ─ decode

All times are milliseconds since a zero that the caller chooses; the file has microseconds with three decimals.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import count, pairwise
from os import PathLike
from typing import Any

from chairlift.observability.chrome_trace_file import Event, TraceFile

ENGINE, REQUESTS = 1, 2
PHASES = ("schedule", "launch", "collect", "commit")


class PerfettoProfile:
    """Writes a profile while the engine runs; every method is thread-safe, and only close() waits."""

    def __init__(self, path: "str | PathLike[str]") -> None:
        """Create the file. Raises OSError."""
        self._file = TraceFile(path)
        self._free_at: list[int] = []  # end of each track's last step, in nanoseconds
        self._numbers = count(1)
        self._file.add([_named("process_name", ENGINE, 0, "engine"), _named("process_name", REQUESTS, 0, "requests")])

    def step(self, name: str, phases: Sequence[tuple[float, float]], numbers: Mapping[str, int]) -> None:
        """Add a step: start and end of schedule, launch, collect and commit. Steps come in order."""
        spans = [(_nanoseconds(begin), _nanoseconds(end)) for begin, end in phases]
        started_at, ended = spans[0][0], spans[-1][1]
        track = next((track for track, end in enumerate(self._free_at) if end <= started_at), len(self._free_at))
        events: list[Event] = []
        if track == len(self._free_at):
            self._free_at.append(0)
            events.append(_named("thread_name", ENGINE, track + 1, "steps" if track == 0 else f"steps ({track + 1})"))
        self._free_at[track] = ended
        events.append(_slice(name, track, started_at, ended, numbers))
        for phase, (begin, end) in zip(PHASES, spans, strict=True):
            events.append(_slice(phase, track, begin, end, numbers))
        self._file.add(events)

    def counters(self, at: float, counters: Mapping[str, Mapping[str, int]]) -> None:
        """Add counter values: name of the counter -> name of the series -> value."""
        moment = _microseconds(_nanoseconds(at))
        self._file.add(
            {"ph": "C", "pid": ENGINE, "tid": 0, "ts": moment, "name": name, "args": dict(series)}
            for name, series in counters.items()
        )

    def request(self, name: str, phases: Sequence[tuple[str, float]], end: float, facts: Mapping[str, Any]) -> None:
        """Add a finished request: the start of each of its phases in order, and the end of the last one."""
        number = f"0x{next(self._numbers):x}"
        begins = [_nanoseconds(begin) for _, begin in phases]
        ends = _nanoseconds(end)
        events = [_edge("b", name, number, begins[0], facts)]
        for (phase, _), (begin, until) in zip(phases, pairwise([*begins, ends]), strict=True):
            events += [_edge("b", phase, number, begin, {}), _edge("e", phase, number, max(begin, until), {})]
        self._file.add([*events, _edge("e", name, number, max(begins[-1], ends), {})])

    @property
    def dropped(self) -> int:
        """Number of events dropped because the disk was too slow."""
        return self._file.dropped

    def close(self) -> OSError | None:
        """Write the waiting events and end the file. Idempotent. Returns the first write error."""
        self._file.close(_named("thread_name", ENGINE, 0, "counters"))
        return self._file.error


def _nanoseconds(milliseconds: float) -> int:
    return round(milliseconds * 1e6)


def _microseconds(nanoseconds: int) -> float:
    return nanoseconds / 1e3


def _named(what: str, process: int, track: int, name: str) -> Event:
    return {"ph": "M", "pid": process, "tid": track, "ts": 0, "name": what, "args": {"name": name}}


def _slice(name: str, track: int, begin: int, end: int, numbers: Mapping[str, int]) -> Event:
    return {
        "ph": "X", "pid": ENGINE, "tid": track + 1, "ts": _microseconds(begin), "dur": _microseconds(end - begin),
        "name": name, "cat": "step", "args": dict(numbers),
    }  # fmt: skip


def _edge(phase: str, name: str, number: str, at: int, facts: Mapping[str, Any]) -> Event:
    return {
        "ph": phase, "pid": REQUESTS, "tid": 0, "ts": _microseconds(at), "id": number, "cat": "request", "name": name,
        "args": dict(facts),
    }  # fmt: skip


def phases_of(events: Iterable[tuple[str, float]]) -> tuple[list[tuple[str, float]], float]:
    """Turn a request's events, (name, at) in order of time, into its phases and its end.

    A phase is queued, prefill, decode, or preempted (from a preemption until the sequence is scheduled again).
    """
    phases: list[tuple[str, float]] = []
    has_token, end = False, 0.0
    for name, at in events:
        end = at
        if name in ("queued", "preempted"):
            phases.append((name, at))
        elif name == "scheduled":
            phases.append(("decode" if has_token else "prefill", at))
        elif name == "first_token":
            has_token = True
            phases.append(("decode", at))
    return phases, end
