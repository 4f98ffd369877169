"""When a replica that ended by itself is started again: RestartPlan, made without I/O.

A failed replica that no other one was started for holds a place: `scale` starts a replica for it once its delay is
over, and none beside it. So a replica that cannot start does not start more often because `scale` is called often.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chairlift.cluster.local.local_config import LocalConfig
from chairlift.cluster.local.process_record import ProcessRecord, RecordState
from chairlift.core.host.process_end import describe_end


def failures_after(record: ProcessRecord) -> int:
    """Return the starts in a row that ended without ever serving, that of this failed replica included."""
    return 0 if record.has_served else record.num_failures + 1


def restarts_after(record: ProcessRecord, config: LocalConfig) -> int:
    """Return the starts in a row that ended soon, that of this failed replica included; at least 1."""
    return 1 if elapsed(record.started_at, record.ended_at) >= config.reset_seconds else record.num_restarts + 1


def restart_delay(record: ProcessRecord, config: LocalConfig) -> float:
    """Return the seconds between the end of a failed replica and its restart."""
    doublings = min(restarts_after(record, config) - 1, 32)
    return min(config.max_restart, config.first_restart * 2.0**doublings)


def is_crash_loop(record: ProcessRecord, config: LocalConfig) -> bool:
    """Return whether a failed replica is not restarted any more."""
    return failures_after(record) >= config.max_failures


def elapsed(since: float, now: float) -> float:
    """Return the seconds between two times of day; 0 if the clock was set back in between."""
    return max(0.0, now - since)


def holds_place(record: ProcessRecord, version: str) -> bool:
    """Return whether a replica waits for its restart, or is in a crash loop, and has this version."""
    return record.state is RecordState.FAILED and not record.is_replaced and record.version == version


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPlan:
    """What `scale` starts.

    Attributes:
        restarts: failed replicas that a replica is started for now.
        num_new: further replicas to start.
    """

    restarts: tuple[ProcessRecord, ...]
    num_new: int


def plan_restarts(
    records: Iterable[ProcessRecord], version: str, num_missing: int, config: LocalConfig, now: float
) -> RestartPlan:
    """Plan the start of `num_missing` replicas of a version; those that must wait are left out."""
    waiting = [each for each in records if holds_place(each, version)]
    due = sorted(
        (each for each in waiting
         if not is_crash_loop(each, config) and elapsed(each.ended_at, now) >= restart_delay(each, config)),
        key=lambda each: (each.ended_at, each.replica_id),
    )  # fmt: skip
    return RestartPlan(restarts=tuple(due[:num_missing]), num_new=max(0, num_missing - len(waiting)))


def end_reason(record: ProcessRecord) -> str:
    """Return how a replica's process ended, for a message."""
    if record.note:
        return record.note
    if record.exit_code is None:
        return "it ended while another controller or none was there, so its exit code is unknown"
    return f"it {describe_end(record.exit_code)}"


def describe_restart(record: ProcessRecord, config: LocalConfig, now: float, last_lines: Sequence[str]) -> str:
    """Return why a replica is failed and what happens next."""
    end = end_reason(record)
    if record.is_replaced:
        next_step = "another replica was started for it, or none is wanted"
    elif is_crash_loop(record, config):
        next_step = (
            f"crash loop: {failures_after(record)} starts in a row ended without ever serving, so it is not restarted "
            "until its settings change or an operator asks for it"
        )
    else:
        seconds = max(0.0, restart_delay(record, config) - elapsed(record.ended_at, now))
        next_step = f"it is restarted in {seconds:.1f} s if it is still wanted"
    log = f"; last lines of its log: {' | '.join(last_lines)}" if last_lines else "; its log is empty"
    return f"{end}; {next_step}{log}"
