"""judge: decides from the measurements of a soak test and the results of its requests whether the server passed.

Memory is judged by the median of a window at the end against that of a window after the first minutes. For the engine's
process, the first window starts after the last fault that ended an engine, as many minutes later as for a new server.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from soak.clients import TOO_MANY_REQUESTS
from soak.fault_injection import FATAL, InjectedFault
from soak.raw_client import Outcome, RequestResult
from soak.request_mix import SoakRequest
from soak.server_samples import ProcessSample, ServerSample
from soak.soak_result import SoakResult

MAX_GROWTH = 0.05
"""Allowed growth of resident memory between the two windows, as a share."""

MAX_MORE_DESCRIPTORS = 2
"""Allowed growth of the numbers of descriptors and threads between the first and the last idle sample."""

MAX_REJECTED = 0.2
"""Largest share of requests that may be rejected with 429; bursts are a small part of the traffic."""

MIN_WINDOW_SAMPLES = 3

WINDOW_SHARE = 0.2
"""Length of a window as a share of the judged time."""

MAX_LISTED = 10
"""Most kinds of results that a finding lists."""

UNAVAILABLE = 503
SERVER_ERROR = 500

ReadNumber = Callable[[ServerSample], float | None]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    name: str
    passed: bool
    details: str


@dataclass(frozen=True, slots=True)
class Growth:
    """The medians of a number in the first and in the last window."""

    before: float
    after: float

    @property
    def share(self) -> float:
        """Growth as a share of the first median."""
        return self.after / self.before - 1 if self.before else 0.0


def judge(result: SoakResult) -> list[Finding]:
    """Return a finding for each check; the server passed if every check passed."""
    return [
        check_memory(result, "API process", lambda sample: sample.api, result.settle_seconds),
        check_memory(result, "engine process", lambda sample: sample.engine, engine_settled_at(result)),
        *_check_descriptors(result),
        _check_idle(result),
        _check_reference(result),
        *_check_requests(result),
        _check_restarts(result),
        _check_recovery(result),
        Finding(
            f"overload occurred, and at most {MAX_REJECTED:.0%} of the requests were rejected",
            0 < result.num_rejected <= MAX_REJECTED * result.num_requests,
            f"{result.num_rejected} of {result.num_requests} requests were rejected with 429",
        ),
        Finding(
            "the server exits cleanly after SIGTERM", result.exit_code == 0 and result.num_temp_files == 0,
            f"exit code {result.exit_code}, {result.num_temp_files} temporary files left behind",
        ),
    ]  # fmt: skip


def engine_settled_at(result: SoakResult) -> float:
    """Return the time from which on the last engine's memory is judged."""
    recoveries = [fault.effects_until or result.seconds for fault in result.faults if fault.fault in FATAL]
    return max([0.0, *recoveries]) + result.settle_seconds


def check_memory(
    result: SoakResult, name: str, process_of: Callable[[ServerSample], ProcessSample | None], start: float
) -> Finding:
    """Check the resident memory of one process from `start` on.

    The proportional share (pss) is only reported: it changes when another process that shares pages starts or ends.
    """
    title = f"memory of the {name} grows by at most {MAX_GROWTH:.0%}"
    details, passed = [], True
    for kind in ("rss", "pss", "uss"):
        growth = window_growth(result, _number_of(process_of, kind), start)
        if growth is None:
            return Finding(title, False, f"too few samples from {start / 60:.1f} min on")
        details.append(f"{kind} {growth.before / 2**20:.1f} → {growth.after / 2**20:.1f} MiB ({growth.share:+.1%})")
        passed = passed and (kind != "rss" or growth.share <= MAX_GROWTH)
    return Finding(title, passed, f"{', '.join(details)}, from {start / 60:.1f} min on")


def window_growth(result: SoakResult, read: ReadNumber, start: float) -> Growth | None:
    """Return the medians of the first and the last window after `start`; None if a window has too few samples."""
    width = (result.seconds - start) * WINDOW_SHARE
    first, last = [
        [value for sample in result.samples if low <= sample.at <= low + width and (value := read(sample)) is not None]
        for low in (start, result.seconds - width)
    ]
    if width <= 0 or min(len(first), len(last)) < MIN_WINDOW_SAMPLES:
        return None
    return Growth(median(first), median(last))


def _number_of(process_of: Callable[[ServerSample], ProcessSample | None], name: str) -> ReadNumber:
    def read(sample: ServerSample) -> float | None:
        process = process_of(sample)
        return None if process is None else float(getattr(process, name))

    return read


def _check_descriptors(result: SoakResult) -> Iterable[Finding]:
    """Compare the last idle sample with the first one in the time in which the last engine is judged."""
    samples = [idle.sample for idle in result.idle_samples if idle.sample.at >= engine_settled_at(result)]
    if len(samples) < 2:
        title = "no descriptors, threads, files or children are left over"
        yield Finding(title, False, f"only {len(samples)} idle samples in the judged time")
        return
    processes: Mapping[str, Callable[[ServerSample], ProcessSample | None]] = {
        "API process": lambda sample: sample.api, "engine": lambda sample: sample.engine,
    }  # fmt: skip
    checks: list[tuple[str, ReadNumber, int]] = [
        (f"{name} of the {process}", _number_of(process_of, field), max_more)
        for name, field, max_more in (
            ("descriptors", "descriptors", MAX_MORE_DESCRIPTORS), ("threads", "threads", MAX_MORE_DESCRIPTORS),
            ("shared memory files", "shared_files", 0),
        )
        for process, process_of in processes.items()
    ]  # fmt: skip
    checks += [
        ("temporary files", lambda sample: sample.temp_files, 0),
        ("child processes", lambda sample: sample.children, 0),
    ]
    for name, read, max_more in checks:
        first, last = read(samples[0]), read(samples[-1])
        passed = first is not None and last is not None and last <= first + max_more
        yield Finding(f"{name} do not grow", passed, f"{first} → {last}")


def _check_idle(result: SoakResult) -> Finding:
    failed = [idle for idle in result.idle_samples if not idle.is_idle or idle.integrity_errors]
    details = f"{len(result.idle_samples)} idle samples"
    if failed:
        details += f", {len(failed)} of them with something left: " + "; ".join(
            f"at {idle.sample.at:.0f} s {idle.num_requests} requests, {idle.used_blocks} blocks, "
            f"{list(idle.integrity_errors)}"
            for idle in failed[:5]
        )
    title = "when idle, no request and no used block is left, and the integrity check passes"
    return Finding(title, bool(result.idle_samples) and not failed, details)


def _check_reference(result: SoakResult) -> Finding:
    failed = [f"{idle.sample.at:.0f} s" for idle in result.idle_samples if not idle.reference_matches]
    details = f"sent {len(result.idle_samples)} times"
    if failed:
        details += f", another response at {', '.join(failed)}"
    title = "the reference request gets the same bytes as at the start"
    return Finding(title, bool(result.idle_samples) and not failed, details)


def _check_requests(result: SoakResult) -> Iterable[Finding]:
    """Check that each request got a final output, and one of its allowed results."""
    unfinished, wrong, server_errors = Counter[str](), Counter[str](), Counter[str]()
    num_excused = 0
    for request, request_result in result.unexpected:
        is_server_error = request_result.status >= SERVER_ERROR or request_result.code == "engine_dead"
        is_excusable = request_result.status == UNAVAILABLE or request_result.code == "engine_dead"
        if request_result.outcome not in request.outcomes:
            unfinished[f"{request.kind}: {request_result.outcome} ({request_result.status})"] += 1
        elif is_excusable and is_during_fault(request_result, result.faults):
            num_excused += 1
        elif is_server_error:
            server_errors[f"{request.kind}: {request_result.status} {request_result.code}"] += 1
        elif not _is_allowed(request, request_result):
            wrong[f"{request.kind}: {request_result.status} {request_result.code}"] += 1
    details = _format_counts(unfinished, f"{result.num_requests} requests")
    if result.num_dropped:
        details += f", {result.num_dropped} results were not kept"
    all_finished = result.num_requests > 0 and not unfinished and not result.num_dropped
    yield Finding("every request gets one final output", all_finished, details)
    details = _format_counts(server_errors, f"{num_excused} during faults")
    yield Finding("5xx responses occur only during a fault of the engine", not server_errors, details)
    yield Finding(
        "every response is one that its request allows", not wrong, _format_counts(wrong, "no other response")
    )


def _is_allowed(request: SoakRequest, result: RequestResult) -> bool:
    if result.status in (0, TOO_MANY_REQUESTS):
        return True
    if result.outcome is Outcome.ERROR_EVENT:
        return result.code == "timeout" and 408 in request.statuses
    return result.status in request.statuses


def is_during_fault(result: RequestResult, faults: Sequence[InjectedFault]) -> bool:
    """Return whether a request was open while a fatal fault had an effect."""
    return any(
        fault.fault in FATAL
        and result.ended_at >= fault.started_at
        and (fault.effects_until is None or result.started_at <= fault.effects_until)
        for fault in faults
    )


def _format_counts(counts: Counter[str], default: str) -> str:
    return "; ".join(f"{count} x {name}" for name, count in counts.most_common(MAX_LISTED)) or default


def _check_restarts(result: SoakResult) -> Finding:
    num_faults = sum(fault.fault in FATAL for fault in result.faults)
    values = [sample.metrics.get("engine_restarts_total") for sample in result.samples if sample.metrics]
    num_restarts = values[-1] if values else None
    details = f"{num_faults} fatal faults, {num_restarts} restarts"
    return Finding("the engine restarts once for each fatal fault", num_restarts == num_faults, details)


def _check_recovery(result: SoakResult) -> Finding:
    failed = [str(fault.fault) for fault in result.faults if fault.effects_until is None]
    details = ", ".join(failed) or ", ".join(
        f"{fault.fault} {fault.effects_until - fault.started_at:.1f} s"
        for fault in result.faults
        if fault.effects_until and fault.fault in FATAL
    )
    return Finding("the server recovers from every fault", not failed, details or "no fatal fault")
