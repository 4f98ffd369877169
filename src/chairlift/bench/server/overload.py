"""median_phase, judge: judge whether a server met the limits of an overload test.

idle ──> probes: baseline latency ──> closed loop: capacity ──> open loop at 1, 2, 5, 10 times the capacity
                                                                └─ after each: probes until the latency is normal
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from chairlift.bench.server.recovery_probes import GIVE_UP_SECONDS, QUEUEING_GIVE_UP_SECONDS

MIN_GOODPUT_SHARE = 0.9
MAX_REJECTION_SECONDS = 0.05
MAX_MEMORY_RATIO = 1.1
MAX_RECOVERY_SECONDS = 5.0


def median_phase(phases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what is judged of one phase that was measured several times.

    Of what chance moves it is the median; bad ends and requests are those of all. Of memory it is the worst, and as a
    base for others the first, for a server keeps what it has grown by.
    """
    if len(phases) == 1:
        return dict(phases[0])
    memories = [each["server_memory_bytes"] for each in phases if each["server_memory_bytes"] is not None]
    recoveries = [math.inf if each["recovery_seconds"] is None else each["recovery_seconds"]
                  for each in phases if "recovery_seconds" in each]  # fmt: skip
    recovery = median(recoveries) if recoveries else math.inf
    refusals = [each["refusal_seconds"]["p99"] for each in phases if each["refusal_seconds"]["p99"] is not None]
    return {
        "name": phases[0]["name"].partition(",")[0],
        "good_tokens_per_second": median(each["good_tokens_per_second"] or 0.0 for each in phases),
        "sent_per_second": median(each["sent_per_second"] or 0.0 for each in phases),
        "refusal_seconds": {"p99": median(refusals) if refusals else None},
        "recovery_seconds": None if recovery == math.inf else recovery,
        "requests": _sum_counts(each["requests"] for each in phases),
        "tokens": _sum_counts(each["tokens"] for each in phases),
        "first_memory_bytes": phases[0]["server_memory_bytes"],
        "server_memory_bytes": max(
            memories, key=lambda memory: sum(each["peak"] for each in memory.values()), default=None
        ),
    }


def _sum_counts(counts: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    added: Counter[str] = Counter()
    for each in counts:
        added.update({name: value for name, value in each.items() if isinstance(value, int)})
    return dict(added)


def judge(phases: Sequence[Mapping[str, Any]], *, queueing: bool = False) -> dict[str, Any]:
    """Judge whether a server met the limits under overload.

    `phases` are the closed loop that found the capacity, the phase at 1 times the capacity, and those beyond it; with
    several rounds, each is the median_phase() of its kind. Each but the first has `recovery_seconds`. Goodput counts
    tokens of good responses, because a count of requests would favor short phases, in which mostly short responses end.
    The peak is the best goodput of all phases; a phase that offered less is compared to what it offered. Memory is
    compared to the phase at 1 times the capacity. A server that is `queueing` sheds no load by expected wait, so it may
    take as long as its queue to recover.
    """
    peak = max(each["good_tokens_per_second"] or 0.0 for each in phases)
    rows = [_row(each, peak, phases[1], phases[0], queueing=queueing) for each in phases[1:]]
    mode = "queueing" if queueing else "shedding"
    return {"mode": mode, "peak_good_tokens_per_second": peak, "rows": rows, "held": all(row["held"] for row in rows)}


def tokens_per_request(phase: Mapping[str, Any], reference: Mapping[str, Any]) -> float:
    """Return the mean number of output tokens that a phase's requests ask the server for.

    When requests may end earlier, it is the mean of the reference phase, because under overload short ones end sooner.
    """
    tokens = phase["tokens"]
    if tokens["asked"] and not tokens["free"]:
        return float(tokens["asked"] / phase["requests"]["total"])
    done = reference["requests"]["ok"]
    return float(reference["tokens"]["output"] / done) if done else 0.0


def _row(
    phase: Mapping[str, Any], peak: float, once: Mapping[str, Any], reference: Mapping[str, Any], *, queueing: bool
) -> dict[str, Any]:  # fmt: skip
    requests = phase["requests"]
    refusal, recovery = phase["refusal_seconds"]["p99"], phase["recovery_seconds"]
    possible = min(peak, (phase["sent_per_second"] or 0.0) * tokens_per_request(phase, reference))
    row = {
        "name": phase["name"],
        "goodput_share": (phase["good_tokens_per_second"] or 0.0) / possible if possible else 0.0,
        "refusal_p99_seconds": refusal,
        "memory_ratio": _memory_ratio(
            phase["server_memory_bytes"], once.get("first_memory_bytes", once["server_memory_bytes"])
        ),
        "server_errors": requests["server_errors"],
        "non_terminal": requests["non_terminal"],
        "recovery_seconds": recovery,
    }
    missed = list(_unmet_limits(row, queueing=queueing))
    return {**row, "missed": missed, "held": not missed}


def _unmet_limits(row: Mapping[str, Any], *, queueing: bool) -> Iterator[str]:
    """Yield a sentence for each limit that a row does not meet."""
    if row["goodput_share"] < MIN_GOODPUT_SHARE:
        yield f"goodput is {row['goodput_share']:.0%} of its peak, it should be {MIN_GOODPUT_SHARE:.0%}"
    if (refusal := row["refusal_p99_seconds"]) is not None and refusal > MAX_REJECTION_SECONDS:
        yield f"a rejection takes {refusal * 1000:.0f} ms (p99), it should take {MAX_REJECTION_SECONDS * 1000:.0f}"
    if (memory := row["memory_ratio"]) is not None and memory > MAX_MEMORY_RATIO:
        yield f"memory grows to {memory:.2f} times what it was, it should stay below {MAX_MEMORY_RATIO:g}"
    if row["server_errors"]:
        yield f"{row['server_errors']} responses were 5xx"
    if row["non_terminal"]:
        yield f"{row['non_terminal']} requests got no complete response"
    if (recovery := row["recovery_seconds"]) is None:
        yield f"it did not recover within {QUEUEING_GIVE_UP_SECONDS if queueing else GIVE_UP_SECONDS:g} s"
    elif not queueing and recovery > MAX_RECOVERY_SECONDS:
        yield f"it recovered after {recovery:.1f} s, it should recover within {MAX_RECOVERY_SECONDS:g} s"


def _memory_ratio(now: Mapping[str, Any] | None, then: Mapping[str, Any] | None) -> float | None:
    """Return the growth of the memory of all processes together, None when it is unknown."""
    common = set(now or ()) & set(then or ())
    if now is None or then is None or not common:
        return None
    return float(sum(now[name]["peak"] for name in common) / sum(then[name]["peak"] for name in common))
