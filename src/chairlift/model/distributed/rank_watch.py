"""RankWatch: finds the rank for which the others wait, by the progress that each rank reports every BEAT_SECONDS.

silent   no report has come, and the kernel reports no activity of the process: it is stopped
behind   rank 0 has called a collective that the rank has not called, and the rank calls no other one: it hangs

Time counts only while rank 0 waits for the ranks, at most MAX_TICK_SECONDS at once: when the whole machine pauses, no
rank is silent.
"""

import threading
from dataclasses import dataclass

from chairlift.core.errors import EngineDead
from chairlift.core.host.process_activity import ActivityWatch, RunQueueDelay, without_delay

BEAT_SECONDS = 1.0
"""Seconds between two reports of a rank's progress, and between two ticks of the watch."""

SILENT_SECONDS, START_SILENT_SECONDS = 30.0, 120.0
"""Seconds without a report after which a rank is lost: in a step, and in the start, where a slow disk may hold a rank's
whole process for the time of a large weight."""

BEHIND_SECONDS = 60.0
"""Seconds after which a rank is lost that does not call the collective in which the others wait, without delays by
other programs."""

MAX_TICK_SECONDS = 2.0


@dataclass(slots=True)
class _Progress:
    """What is known of a rank: its process, the collectives that it has called, and seconds of both kinds."""

    pid: int
    activity: ActivityWatch
    delay: RunQueueDelay
    num_collectives: int = 0
    has_reported: bool = False
    has_reported_since_tick: bool = False
    silent_seconds: float = 0.0
    behind_seconds: float = 0.0
    delay_before: float = 0.0

    def count_behind(self, seconds: float) -> None:
        """Count seconds in which the others waited for the rank, without its delay by other programs; 0 ends them."""
        if not seconds:
            self.behind_seconds = 0.0
            return
        delay = self.delay.seconds()
        if self.behind_seconds:
            seconds = without_delay(seconds, delay - self.delay_before)
        self.behind_seconds, self.delay_before = self.behind_seconds + seconds, delay


class RankWatch:
    """The progress of all ranks but rank 0. Its methods may be called by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ranks: dict[int, _Progress] = {}

    def add(self, rank: int, pid: int) -> None:
        """Watch the process of a rank, from its first report on."""
        with self._lock:
            self._ranks[rank] = _Progress(pid, ActivityWatch(pid), RunQueueDelay(pid))

    def report(self, rank: int, num_collectives: int) -> None:
        """Record a report: the number of collectives that the rank has called."""
        with self._lock:
            if (progress := self._ranks.get(rank)) is None:
                return  # its process is about to be added
            if num_collectives != progress.num_collectives:
                progress.num_collectives, progress.behind_seconds = num_collectives, 0.0
            progress.has_reported = progress.has_reported_since_tick = True

    def pause(self) -> None:
        """Forget the seconds so far, as rank 0 waits for no rank."""
        with self._lock:
            for progress in self._ranks.values():
                progress.silent_seconds = progress.behind_seconds = 0.0

    def tick(self, seconds: float, num_collectives: int | None) -> EngineDead | None:
        """Count seconds in which rank 0 waited; returns the error of a rank that is lost.

        Args:
            seconds: since the last tick.
            num_collectives: those that rank 0 has called; None while the ranks start, which takes unequal times.
        """
        seconds = min(seconds, MAX_TICK_SECONDS)
        with self._lock:
            for progress in self._ranks.values():
                is_silent = progress.has_reported and not progress.has_reported_since_tick
                is_silent = is_silent and not progress.activity.was_active()
                progress.silent_seconds = progress.silent_seconds + seconds if is_silent else 0.0
                progress.has_reported_since_tick = False
                is_behind = num_collectives is not None and progress.num_collectives < num_collectives
                progress.count_behind(seconds if is_behind else 0.0)
            return self._silent(START_SILENT_SECONDS if num_collectives is None else SILENT_SECONDS) or self._behind()

    def _silent(self, limit: float) -> EngineDead | None:
        rank = max(self._ranks, key=lambda each: self._ranks[each].silent_seconds, default=None)
        if rank is None or (progress := self._ranks[rank]).silent_seconds <= limit:
            return None
        return EngineDead(
            f"rank {rank} of {len(self._ranks) + 1} (process {progress.pid}) has not reported for "
            f"{progress.silent_seconds:.1f} s, the limit is {limit:g} s: the process is stopped or gets no "
            "CPU time; look for a SIGSTOP, a debugger, swapping or a CPU limit, then start the engine again"
        )

    def _behind(self) -> EngineDead | None:
        rank = min(self._ranks, key=lambda each: self._ranks[each].num_collectives, default=None)
        if rank is None or (progress := self._ranks[rank]).behind_seconds <= BEHIND_SECONDS:
            return None
        return EngineDead(
            f"rank {rank} of {len(self._ranks) + 1} (process {progress.pid}) has hung for "
            f"{progress.behind_seconds:.1f} s in a step in which the other ranks wait for it, the limit is "
            f"{BEHIND_SECONDS:g} s; look for a logits processor that waits, then start the engine again"
        )
