"""Overload: how fast a server is as before after a burst, and whether it holds what a server should under too much.

idle ──> probes: how fast is fast ──> closed loop: the capacity ──> open loop at 1, 2, 5, 10 times that
                                                                    └─ after each: probes until as fast as before
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from chairlift.bench.server.api_requests import PreparedRequest
from chairlift.bench.server.http_client import Client
from chairlift.bench.server.response_recorder import HttpRequestRecord, Outcome, ResponseRecorder

PROBES = 5
PROBE_TOKENS = 16, 1
"""Prompt and output of a probe."""

PROBE_GAP_SECONDS = 0.25
NORMAL_RUN = 3
"""Probes in a row that have to be fast."""

GIVE_UP_SECONDS = 90.0

LEAST_GOODPUT = 0.9
REFUSAL_SECONDS = 0.05
MOST_MEMORY = 1.1
RECOVERY_SECONDS = 5.0


class RecoveryProbes:
    """Small requests that show whether a server is as fast as when it was idle."""

    def __init__(self, client: Client, shot: PreparedRequest) -> None:
        self._client = client
        self._shot = shot
        self.baseline = 0.0

    @property
    def limit(self) -> float:
        """Seconds that a normal one may take: twice what it takes an idle server, and a little for chance."""
        return 2 * self.baseline + 0.05

    async def learn(self) -> None:
        """Find out how long one takes now, when nothing else is asked."""
        taken = [await self._one() for _ in range(PROBES)]
        self.baseline = median(taken[1:])  # the first one may find everything cold

    async def until_normal(self) -> float | None:
        """Return the seconds from now to the first of several normal probes; None when that takes too long."""
        began, sent = time.monotonic(), list[tuple[float, asyncio.Task[float]]]()
        try:
            while (now := time.monotonic() - began) < GIVE_UP_SECONDS:
                sent.append((now, asyncio.create_task(self._one())))
                await asyncio.sleep(PROBE_GAP_SECONDS)
                if (found := self._first_run(sent)) is not None:
                    return found
            return None
        finally:
            for _, task in sent:
                task.cancel()
            await asyncio.gather(*(task for _, task in sent), return_exceptions=True)

    def _first_run(self, sent: Sequence[tuple[float, "asyncio.Task[float]"]]) -> float | None:
        """When the first of so many normal ones in a row was sent."""
        run: list[float] = []
        for at, task in sent:
            if task.done() and task.result() <= self.limit:
                run.append(at)
            else:
                run.clear()
            if len(run) == NORMAL_RUN:
                return run[0]
        return None

    async def _one(self) -> float:
        """Seconds that one takes; endless when it does not end well."""
        began = time.monotonic()
        record = HttpRequestRecord(due=0.0, sent=0.0)
        answer = ResponseRecorder(record, began)
        answer.end(await self._client.ask(self._shot.request, answer, GIVE_UP_SECONDS))
        return record.ended if record.outcome is Outcome.OK else float("inf")


def middle(phases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
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
        "requests": _added(each["requests"] for each in phases),
        "tokens": _added(each["tokens"] for each in phases),
        "first_memory_bytes": phases[0]["server_memory_bytes"],
        "server_memory_bytes": max(
            memories, key=lambda found: sum(each["peak"] for each in found.values()), default=None
        ),
    }


def _added(counts: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    added: Counter[str] = Counter()
    for each in counts:
        added.update({name: value for name, value in each.items() if isinstance(value, int)})
    return dict(added)


def judge(phases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Say whether a server held what one should.

    `phases` (of several rounds the middle() of each) are the closed one that found the capacity, then that at once the
    capacity, then those beyond it; each has `recovery_seconds` but the first. Goodput is counted in tokens of good
    answers: by requests a short phase would look better than a long one, because its short answers are over first. The
    peak is the best of all phases; where less than that was asked for, a phase is held to what was. Memory is compared
    with the phase at once the capacity.
    """
    peak = max(each["good_tokens_per_second"] or 0.0 for each in phases)
    rows = [_row(each, peak, phases[1], phases[0]) for each in phases[1:]]
    return {"peak_good_tokens_per_second": peak, "rows": rows, "held": all(row["held"] for row in rows)}


def tokens_a_request(phase: Mapping[str, Any], calm: Mapping[str, Any]) -> float:
    """Return how many output tokens a request of a phase asks for.

    Where some may end earlier, it is what they got in a calm phase: under overload short ones are over sooner.
    """
    tokens = phase["tokens"]
    if tokens["asked"] and not tokens["free"]:
        return float(tokens["asked"] / phase["requests"]["total"])
    done = calm["requests"]["ok"]
    return float(calm["tokens"]["output"] / done) if done else 0.0


def _row(phase: Mapping[str, Any], peak: float, once: Mapping[str, Any], calm: Mapping[str, Any]) -> dict[str, Any]:
    requests = phase["requests"]
    refusal, recovery = phase["refusal_seconds"]["p99"], phase["recovery_seconds"]
    possible = min(peak, (phase["sent_per_second"] or 0.0) * tokens_a_request(phase, calm))
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
    return {**row, "missed": list(_missed(row)), "held": not any(_missed(row))}


def _missed(row: Mapping[str, Any]) -> Iterator[str]:
    """Say what a row does not hold."""
    if row["goodput_share"] < LEAST_GOODPUT:
        yield f"goodput is {row['goodput_share']:.0%} of its peak, it should be {LEAST_GOODPUT:.0%}"
    if (refusal := row["refusal_p99_seconds"]) is not None and refusal > REFUSAL_SECONDS:
        yield f"a refusal takes {refusal * 1000:.0f} ms (p99), it should take {REFUSAL_SECONDS * 1000:.0f}"
    if (memory := row["memory_ratio"]) is not None and memory > MOST_MEMORY:
        yield f"memory grows to {memory:.2f} times what it was, it should stay below {MOST_MEMORY:g}"
    if row["server_errors"]:
        yield f"{row['server_errors']} answers were 5xx"
    if row["non_terminal"]:
        yield f"{row['non_terminal']} requests got no end"
    if (recovery := row["recovery_seconds"]) is None:
        yield f"it was not as fast as before within {GIVE_UP_SECONDS:g} s"
    elif recovery > RECOVERY_SECONDS:
        yield f"it was as fast as before after {recovery:.1f} s, it should be after {RECOVERY_SECONDS:g}"


def _memory_ratio(now: Mapping[str, Any] | None, then: Mapping[str, Any] | None) -> float | None:
    """The growth of all processes together; None where nothing is known."""
    known = set(now or ()) & set(then or ())
    if now is None or then is None or not known:
        return None
    return float(sum(now[name]["peak"] for name in known) / sum(then[name]["peak"] for name in known))
