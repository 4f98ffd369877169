"""SilentEngineCheck: decides whether an engine process that sends nothing works, has stopped, or hangs.

Its heartbeats come from a Python thread, which a busy machine can delay for seconds. So the kernel is asked whether the
process runs, which waits neither for Python's lock nor for a step.
"""

from pathlib import Path

from chairlift.core.host.process_activity import ActivityWatch, RunQueueDelay, without_delay
from chairlift.core.host.system_files import PROC
from chairlift.engine.ipc.liveness_limits import LivenessConfig, SilenceTimer

LATE_INTERVALS = 2
"""Heartbeat intervals without a message after which the kernel is asked, once an interval."""


class SilentEngineCheck:
    """The silence of one engine process, and its activity meanwhile.

    `pid` is the id of a process that this one has spawned: only then it is surely this one's name for it. None shows no
    activity.
    """

    def __init__(self, limits: LivenessConfig, now: float, pid: int | None, *, proc: Path = PROC) -> None:
        """Begin at monotonic second `now`."""
        self._limits, self._pid, self._proc = limits, pid, proc
        self._silence = SilenceTimer(limits.interval, now)
        self._inactivity = SilenceTimer(limits.interval, now)
        self._activity: tuple[ActivityWatch, RunQueueDelay] | None = None
        self._delay_seconds, self._next_check_at = 0.0, now

    def message_received(self, now: float) -> None:
        """Reset the silence."""
        self._silence.reset(now)
        self._inactivity.reset(now)
        self._activity, self._delay_seconds = None, 0.0

    def failure_reason(self, now: float, *, is_ready: bool) -> str | None:
        """Return why a silent engine counts as failed, None while it does not.

        Call it at least once a heartbeat interval, after all messages that had arrived were received.
        """
        limits = self._limits
        silence = self._silence.elapsed(now)
        if silence > LATE_INTERVALS * limits.interval and now >= self._next_check_at:
            self._next_check_at = now + limits.interval
            self._check_activity(now)
        limit = limits.heartbeat_timeout
        if not is_ready:
            limit = max(limit, limits.start_heartbeat_timeout)
        if (inactive := self._inactivity.elapsed(now)) > limit:
            idle = "" if self._pid is None else " and has not run"
            return f"the engine process has been silent{idle} for {inactive:.1f} s, the limit is {limit:g} s"
        hang_limit = max(limits.step_timeout, limit)
        if is_ready and (hanging := without_delay(silence, self._delay_seconds)) > hang_limit:
            return (
                f"the engine hangs: its process runs, but has been silent for {hanging:.1f} s, "
                f"the limit is {hang_limit:g} s"
            )
        return None

    def _check_activity(self, now: float) -> None:
        if self._pid is None:
            return
        if self._activity is None:
            self._activity = (ActivityWatch(self._pid, proc=self._proc), RunQueueDelay(self._pid, proc=self._proc))
        activity, delay = self._activity
        if activity.was_active():
            self._inactivity.reset(now)
        self._delay_seconds = delay.seconds()
