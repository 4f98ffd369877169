"""part_budget.py: parts run while time is left, and an error or a lack of time costs one part only."""

from typing import Any

from chairlift.core.clock import FakeClock
from gpu_bench.part_budget import MAX_TRACE_LINES, Measure, Part, PartOutcome, PartSkipped, run_parts


def taking(clock: FakeClock, seconds: float, limits: list[float] | None = None) -> Measure:
    def measure(limit: float) -> dict[str, Any]:
        if limits is not None:
            limits.append(limit)
        clock.advance(seconds)
        return {"took": seconds}

    return measure


def run(clock: FakeClock, parts: list[Part], budget: float) -> list[PartOutcome]:
    outcomes: list[PartOutcome] = []
    run_parts(parts, budget, clock, outcomes.append)
    return outcomes


def test_a_part_without_enough_time_is_skipped_and_a_shorter_one_runs() -> None:
    clock, limits = FakeClock(50.0), list[float]()
    parts = [
        Part("first", 60, taking(clock, 70, limits)), Part("long", 40, taking(clock, 5, limits)),
        Part("short", 30, taking(clock, 31, limits)), Part("late", 1, taking(clock, 1, limits)),
    ]  # fmt: skip
    first, long, short, late = run(clock, parts, 100)
    assert [each.status for each in (first, long, short, late)] == ["done", "skipped", "done", "skipped"]
    assert limits == [60, 30] and clock.now() == 50 + 70 + 31
    assert first.result == {"took": 70} and first.seconds == 70 and first.reason == ""
    assert long.reason == "needs 40 s, 30 s of 100 s are left" and long.result == {}
    assert late.reason == "needs 1 s, 0 s of 100 s are left"


def test_a_part_runs_when_exactly_its_time_is_left() -> None:
    clock = FakeClock()
    outcomes = run(clock, [Part("one", 60, taking(clock, 60)), Part("two", 40, taking(clock, 40))], 100)
    assert [each.status for each in outcomes] == ["done", "done"]


def test_an_error_in_a_part_is_kept_and_the_next_part_runs() -> None:
    clock = FakeClock()

    def fail(limit: float) -> dict[str, Any]:
        clock.advance(3)
        raise RuntimeError("out of memory")

    def refuse(limit: float) -> dict[str, Any]:
        raise PartSkipped("no such option")

    failed, skipped, done = run(
        clock, [Part("a", 5, fail), Part("b", 5, refuse), Part("c", 5, taking(clock, 2))], 100
    )  # fmt: skip
    assert (failed.status, failed.reason, failed.seconds) == ("failed", "RuntimeError: out of memory", 3)
    assert failed.trace[-1] == "RuntimeError: out of memory" and len(failed.trace) <= MAX_TRACE_LINES
    assert (skipped.status, skipped.reason, skipped.trace) == ("skipped", "no such option", ())
    assert done.status == "done" and done.result == {"took": 2}


def test_each_outcome_is_reported_before_the_next_part_starts() -> None:
    clock, order = FakeClock(), list[str]()

    def measure(name: str) -> Measure:
        return lambda limit: {"order": order.append(name)}

    run_parts(
        [Part(name, 1, measure(name)) for name in "ab"], 10, clock, lambda outcome: order.append(f"{outcome.name} kept")
    )
    assert order == ["a", "a kept", "b", "b kept"]
