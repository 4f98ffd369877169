"""Verdict: whether a server came out of a soak as it went in; pure, over what was measured and what became of requests.

Memory: the median of a window at the end against that of one behind the first minutes. For the engine's process the
first window lies behind the last fault that it died of, by as much as the server has at its start.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from soak.fault_injection import FATAL, Done
from soak.raw_client import End, Ending
from soak.request_mix import Order
from soak.sampling import IdleSample, Process, Sample

MAX_GROWTH = 0.05
SPARE_DESCRIPTORS = 2
MAX_REFUSED = 0.2
"""Of all requests: bursts are a small part of them."""

LEAST_SAMPLES = 3
"""In each window."""

WINDOW = 0.2
"""Of the time between the first minutes and the end."""

REFUSED, UNAVAILABLE = 429, 503
SERVER_ERROR = 500


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: whether it is well, and what was seen."""

    name: str
    good: bool
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """All that was seen of a soak; times are seconds since its beginning.

    Attributes:
        seconds: how long it was.
        settle: how long everything may take to find its level.
        samples: in order.
        rests: in order.
        harms: that were done.
        odd: endings out of the ordinary.
        total: requests that have ended.
        dropped: odd ones that were not kept.
        refused: how many of them were told to come later.
        exit_code: of the server when it was asked to leave at the end.
        left_files: temporary ones that it left behind.
    """

    seconds: float
    settle: float
    samples: Sequence[Sample]
    rests: Sequence[IdleSample]
    harms: Sequence[Done]
    odd: Sequence[tuple[Order, Ending]]
    total: int
    dropped: int
    refused: int
    exit_code: int
    left_files: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Of one number: the medians of two windows."""

    before: float
    after: float

    @property
    def share(self) -> float:
        """By how much it grew, as a share of what it was."""
        return self.after / self.before - 1 if self.before else 0.0


def findings(course: Course) -> list[Finding]:
    """Judge a course; every finding has to be good."""
    return [
        memory(course, "API process", lambda sample: sample.api, course.settle),
        memory(course, "engine process", lambda sample: sample.engine, settled(course)),
        *_descriptors(course),
        _at_rest(course),
        _reference(course),
        *_requests(course),
        _restarts(course),
        _came_back(course),
        Finding(
            "there was overload, and most were served all the same",
            0 < course.refused <= MAX_REFUSED * course.total,
            f"{course.refused} of {course.total} requests were told to come later (429)",
        ),
        Finding(
            "the server left when asked", course.exit_code == 0 and course.left_files == 0,
            f"exit code {course.exit_code}, {course.left_files} temporary files left behind",
        ),
    ]  # fmt: skip


def settled(course: Course) -> float:
    """Return from when on the memory of the last engine is judged."""
    ends = [done.until or course.seconds for done in course.harms if done.harm in FATAL]
    return max([0.0, *ends]) + course.settle


def memory(
    course: Course, name: str, pick: Callable[[Sample], Process | None], start: float
) -> Finding:  # fmt: skip
    """Judge the memory of one process from `start` on, by what is resident.

    Its share of that (pss) is only told: it moves when another process that shares pages with it starts or ends.
    """
    title = f"memory of the {name} is flat within {MAX_GROWTH:.0%}"
    told, good = [], True
    for kind in ("rss", "pss", "uss"):
        growth = grown(course, _reader(pick, kind), start)
        if growth is None:
            return Finding(title, False, f"too little was measured from {start / 60:.1f} min on")
        told.append(f"{kind} {growth.before / 2**20:.1f} → {growth.after / 2**20:.1f} MiB ({growth.share:+.1%})")
        good = good and (kind != "rss" or growth.share <= MAX_GROWTH)
    return Finding(title, good, f"{', '.join(told)}, from {start / 60:.1f} min on")


def grown(course: Course, read: Callable[[Sample], float | None], start: float) -> Growth | None:
    """Return the medians of the first and of the last window behind `start`; None where too little was measured."""
    width = (course.seconds - start) * WINDOW
    first, last = [
        [value for sample in course.samples if low <= sample.at <= low + width and (value := read(sample)) is not None]
        for low in (start, course.seconds - width)
    ]
    if width <= 0 or min(len(first), len(last)) < LEAST_SAMPLES:
        return None
    return Growth(median(first), median(last))


def _reader(pick: Callable[[Sample], Process | None], kind: str) -> Callable[[Sample], float | None]:
    return lambda sample: _of(pick(sample), kind)


def _of(process: Process | None, kind: str) -> float | None:
    return None if process is None else float(getattr(process, kind))


def _descriptors(course: Course) -> Iterable[Finding]:
    """Compare the last time of rest with the first one from when on the last engine is judged."""
    rests = [rest.sample for rest in course.rests if rest.sample.at >= settled(course)]
    title = "no descriptors, threads, files or children are left over"
    if len(rests) < 2:
        yield Finding(title, False, f"only {len(rests)} times of rest in what is judged")
        return
    kinds: Mapping[str, tuple[Callable[[Sample], float | None], int]] = {
        "descriptors of the API process": (lambda sample: _of(sample.api, "descriptors"), SPARE_DESCRIPTORS),
        "descriptors of the engine": (lambda sample: _of(sample.engine, "descriptors"), SPARE_DESCRIPTORS),
        "threads of the API process": (lambda sample: _of(sample.api, "threads"), SPARE_DESCRIPTORS),
        "threads of the engine": (lambda sample: _of(sample.engine, "threads"), SPARE_DESCRIPTORS),
        "shared memory of the API process": (lambda sample: _of(sample.api, "shared_files"), 0),
        "shared memory of the engine": (lambda sample: _of(sample.engine, "shared_files"), 0),
        "temporary files": (lambda sample: sample.files, 0), "children": (lambda sample: sample.children, 0),
    }  # fmt: skip
    for name, (read, spare) in kinds.items():
        first, last = read(rests[0]), read(rests[-1])
        known = first is not None and last is not None
        yield Finding(f"{name} do not grow", known and last <= first + spare, f"{first} → {last}")  # type: ignore[operator]


def _at_rest(course: Course) -> Finding:
    bad = [rest for rest in course.rests if not rest.has_rested or rest.faults]
    said = f"{len(course.rests)} times of rest"
    if bad:
        said += f", {len(bad)} of them with something left: " + "; ".join(
            f"at {rest.sample.at:.0f} s {rest.riders} riders, {rest.used_blocks} blocks, {list(rest.faults)}"
            for rest in bad[:5]
        )
    return Finding("at rest every block is back and nobody rides", bool(course.rests) and not bad, said)


def _reference(course: Course) -> Finding:
    bad = [f"{rest.sample.at:.0f} s" for rest in course.rests if not rest.is_same]
    said = f"asked {len(course.rests)} times" + (f", another answer at {', '.join(bad)}" if bad else "")
    return Finding("a good request is answered byte for byte as at the start", bool(course.rests) and not bad, said)


def _requests(course: Course) -> Iterable[Finding]:
    """Judge how requests ended: each with a last word, and each with one that it may have."""
    lost, wrong, broken = Counter[str](), Counter[str](), Counter[str]()
    excused = 0
    for asked, ending in course.odd:
        harmed = in_harm(ending, course.harms)
        died = ending.status >= SERVER_ERROR or ending.code == "engine_dead"
        if ending.end not in asked.ends:
            lost[f"{asked.kind}: {ending.end} ({ending.status})"] += 1
        elif harmed and (ending.status == UNAVAILABLE or ending.code == "engine_dead"):
            excused += 1
        elif died:
            broken[f"{asked.kind}: {ending.status} {ending.code}"] += 1
        elif not _is_expected(asked, ending):
            wrong[f"{asked.kind}: {ending.status} {ending.code}"] += 1
    yield Finding(
        "every request has a last word", course.total > 0 and not lost and not course.dropped,
        _told(lost, f"{course.total} requests") + (f", {course.dropped} not looked at" if course.dropped else ""),
    )  # fmt: skip
    yield Finding("no 5xx but where the engine was harmed", not broken, _told(broken, f"{excused} where it was"))
    yield Finding("every answer is one that the request may get", not wrong, _told(wrong, "none else"))


def _is_expected(asked: Order, ending: Ending) -> bool:
    if ending.status in (0, REFUSED):
        return True
    if ending.end is End.ERROR_EVENT:
        return ending.code == "timeout" and 408 in asked.statuses
    return ending.status in asked.statuses


def in_harm(ending: Ending, harms: Sequence[Done]) -> bool:
    """Whether a request was under way while the engine was harmed or away."""
    return any(
        done.harm in FATAL and ending.ended >= done.began and (done.until is None or ending.began <= done.until)
        for done in harms
    )


def _told(counted: Counter[str], otherwise: str) -> str:
    return "; ".join(f"{count} x {name}" for name, count in counted.most_common(10)) or otherwise


def _restarts(course: Course) -> Finding:
    done = sum(harm.harm in FATAL for harm in course.harms)
    counted = [sample.metrics.get("engine_restarts_total") for sample in course.samples if sample.metrics]
    seen = counted[-1] if counted else None
    return Finding("the engine was restarted as often as it was harmed", seen == done, f"{done} harms, {seen} restarts")


def _came_back(course: Course) -> Finding:
    lost = [str(done.harm) for done in course.harms if done.until is None]
    said = ", ".join(
        f"{done.harm} {done.until - done.began:.1f} s" for done in course.harms if done.until and done.harm in FATAL
    )
    return Finding("the server came back from every fault", not lost, ", ".join(lost) or said or "there was none")
