"""run_parts: runs the parts of a benchmark in order within a time budget; one that fails loses no other."""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from chairlift.core.clock import Clock

MAX_TRACE_LINES = 12
"""Lines of a traceback that the report keeps, the last ones."""


class PartSkipped(Exception):
    """Raised by a part that cannot run here; the message says why."""


Measure = Callable[[float], dict[str, Any]]
"""Takes a limit in seconds; returns the results for the report."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the benchmark.

    Attributes:
        name: for --parts and the report.
        seconds: its share of the budget: it is started only while so much time is left, and gets it as its limit.
        measure: measures it.
    """

    name: str
    seconds: float
    measure: Measure


@dataclass(frozen=True, slots=True)
class PartOutcome:
    """What became of a part.

    Attributes:
        name: the part's name.
        status: "done", "failed" or "skipped".
        seconds: duration.
        reason: why it failed or was skipped; "" for "done".
        result: of "done", else empty.
        trace: the last lines of the traceback of "failed".
    """

    name: str
    status: str
    seconds: float
    reason: str
    result: dict[str, Any]
    trace: tuple[str, ...] = ()


def run_parts(
    parts: Sequence[Part], budget_seconds: float, clock: Clock, on_outcome: Callable[[PartOutcome], None]
) -> None:  # fmt: skip
    """Run parts in order; `on_outcome` is called after each, also for those that do not run.

    A part that needs more time than is left is skipped, and later shorter ones still run.
    """
    started_at = clock.now()
    for part in parts:
        began = clock.now()
        left = budget_seconds - (began - started_at)
        if left < part.seconds:
            reason = f"needs {part.seconds:.0f} s, {max(0.0, left):.0f} s of {budget_seconds:.0f} s are left"
            on_outcome(PartOutcome(part.name, "skipped", 0.0, reason, {}))
            continue
        status, reason = "done", ""
        trace: tuple[str, ...] = ()
        result: dict[str, Any] = {}
        try:
            result = part.measure(part.seconds)
        except PartSkipped as error:
            status, reason = "skipped", str(error)
        except Exception as error:  # an error of any kind in one part must not lose the figures of the others
            status, reason = "failed", f"{type(error).__name__}: {error}"
            trace = tuple(traceback.format_exc().splitlines()[-MAX_TRACE_LINES:])
        on_outcome(PartOutcome(part.name, status, clock.now() - began, reason, result, trace))
