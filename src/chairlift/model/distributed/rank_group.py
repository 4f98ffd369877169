"""RankGroup: the processes of all ranks but rank 0; it runs each call on every rank and ends them together.

call      sent to every rank, then run here. Ranks that succeed report nothing but a digest of the sampled tokens
error     must come on every rank at the same collective; then the step is void and the ranks go on
          on some ranks only: their state differs, so the group fails
failure   also the end of a process, a collective that fails, a rank that hangs (rank_watch.py), different tokens: the
          other processes are killed, which ends the collectives in progress; each later call raises EngineDead
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from chairlift.core.errors import ChairliftError, EngineDead
from chairlift.core.host.process_activity import UndelayedTimer
from chairlift.model.backends.communicator import START_SECONDS, Communicator
from chairlift.model.distributed.rank_messages import (
    Call,
    CallFailed,
    Collected,
    FromRank,
    Loading,
    PeersLost,
    Progress,
    RankStartFailed,
    Started,
    StartRank,
    encode,
)
from chairlift.model.distributed.rank_process import EXIT_SECONDS, RankProcess
from chairlift.model.distributed.rank_watch import BEAT_SECONDS, RankWatch

AGREEMENT_SECONDS = 5.0
"""Seconds that an error of a call may take to come on every rank, without delays by other programs."""

CHECK_SECONDS = 0.25
"""How often the wait for the same error on every rank looks at these delays."""

CAUSE_SECONDS = 2.0
"""Seconds in which the end of a process is noticed that a failed collective, here or on another rank, hints at."""

IMPORT_SECONDS = 300.0
"""Seconds that the processes may take to import torch."""

MAX_KEPT_FAILURES = 64

T = TypeVar("T")


class RankGroup:
    """The ranks of one engine. `start`, `call` and `close` belong to one thread at a time."""

    def __init__(self) -> None:
        self._processes: list[RankProcess] = []
        self._condition = threading.Condition()
        self._loading: set[int] = set()
        self._started: set[int] = set()
        self._communicator: Communicator | None = None
        self._call = 0
        self._ended_call = 0
        self._failed_calls: deque[int] = deque(maxlen=MAX_KEPT_FAILURES)
        self._rank_errors: dict[int, dict[int, CallFailed]] = {}
        self._digests: dict[int, dict[int, int]] = {}
        self._failure: ChairliftError | None = None
        self._on_failure: Callable[[EngineDead], None] | None = None
        self._watch = RankWatch()
        self._watcher: threading.Thread | None = None
        self._is_starting = False
        self._num_ranks = 1
        self._closing = threading.Event()

    # -- start -----------------------------------------------------------------------------------------------------

    def start(self, starts: Sequence[StartRank]) -> None:
        """Start a process for each rank and wait until all can connect. Raises EngineDead."""
        self._is_starting, self._num_ranks = True, len(starts) + 1
        seconds = min((each.beat_seconds for each in starts), default=BEAT_SECONDS)
        try:
            for each in starts:
                process = RankProcess(each, self._receive, self._process_ended)
                self._watch.add(each.rank, process.pid)
                self._processes.append(process)
        except OSError as error:
            raise EngineDead(f"the process of a rank cannot be started: {error}") from error
        self._watcher = threading.Thread(target=self._tick, args=(seconds,), name="chairlift-rank-watch", daemon=True)
        self._watcher.start()
        self._wait_for(self._loading, IMPORT_SECONDS)

    def wait_until_started(self) -> None:
        """Wait until every rank has started. Raises the first error of a rank's start."""
        self._wait_for(self._started, START_SECONDS)
        self._is_starting = False

    def attach(self, communicator: Communicator) -> None:
        """Set the collectives of rank 0, which end when the group fails."""
        self._communicator = communicator

    def _wait_for(self, ranks: set[int], seconds: float) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._failure or len(ranks) == len(self._processes), seconds)
            missing = [process for process in self._processes if process.rank not in ranks]
        if missing:
            self.fail(EngineDead(
                f"rank {missing[0].rank} of {self._num_ranks} (process {missing[0].pid}) did not start within "
                f"{seconds:g} s; look for a disk that is slow or does not answer, then start the engine again"
            ))  # fmt: skip
        self.check()

    # -- calls -----------------------------------------------------------------------------------------------------

    def call(self, message: Call, function: Callable[[], T]) -> T:
        """Run a call on every rank: send the message to the others, and run the function here.

        Raises what the function raises, if every rank raises with it, else EngineDead.
        """
        self.check()
        frame = encode(message)
        with self._condition:
            self._call += 1
        try:
            for process in self._processes:
                process.send(frame)
            result = function()
        except Exception as error:
            self._end_call(has_failed=True)
            agreed = self._agreed_error(error)
            if agreed is error:
                raise
            raise agreed from None  # not from that of a collective, whose source lies in another process
        self._end_call(has_failed=False)
        self.check()
        return result

    def add_digest(self, digest: int) -> None:
        """Compare the digest of the step that the call in progress collects with those of the other ranks."""
        self._add_digest(0, self._call, digest)

    def check(self) -> None:
        """Raise the failure of the group, if it has failed."""
        communicator = self._communicator
        if communicator is not None and communicator.failure is not None:  # may lie in a row's error
            self.fail(self.cause(communicator.failure))
        if self._failure is not None:
            raise self._failure

    def cause(self, error: ChairliftError) -> ChairliftError:
        """Return why a collective failed with this error: the failure of another rank, if there is one."""
        with self._condition:
            self._condition.wait_for(lambda: self._failure or self._closing.is_set(), CAUSE_SECONDS)
            return self._failure or error

    def _end_call(self, *, has_failed: bool) -> None:
        with self._condition:
            self._ended_call = self._call
            if has_failed:
                self._failed_calls.append(self._call)
            self._condition.notify_all()

    def _agreed_error(self, error: Exception) -> Exception:
        """Return the error of a call if it came on every rank, else that of the failed group."""
        communicator, call = self._communicator, self._call
        lost = None if communicator is None else communicator.failure
        if isinstance(error, EngineDead):
            lost = error
        if lost is not None:
            self.fail(self.cause(lost))
        with self._condition:
            errors = self._rank_errors.setdefault(call, {})
            late = [process.pid for process in self._processes if process.rank not in errors]
            self._wait_for_agreement(lambda: len(errors) == len(self._processes), late)
            self._rank_errors.pop(call, None)
            failure = self._failure
        if failure is not None:
            return failure
        num_collectives = 0 if communicator is None else communicator.num_calls
        for process in self._processes:
            other = errors.get(process.rank)
            if other is None or other.num_collectives != num_collectives:
                what = "did not fail" if other is None else f"failed elsewhere ({other.reason})"
                self.fail(EngineDead(f"rank 0 failed in a step ({error!r}), in which rank {process.rank} {what}"))
                break
        return self._failure or error

    # -- in the threads that read ----------------------------------------------------------------------------------

    def _receive(self, rank: int, message: FromRank) -> None:
        match message:
            case Loading():
                self._add_rank(self._loading, rank)
            case Started():
                self._add_rank(self._started, rank)
            case RankStartFailed():
                self.fail(message.error())
            case Collected(call, digest):
                self._add_digest(rank, call, digest)
            case CallFailed():
                self._add_error(rank, message)
            case PeersLost(reason):
                self.fail(self.cause(EngineDead(reason)))
            case Progress(num_collectives):
                self._watch.report(rank, num_collectives)

    def _add_rank(self, ranks: set[int], rank: int) -> None:
        with self._condition:
            ranks.add(rank)
            self._condition.notify_all()

    def _add_digest(self, rank: int, call: int, digest: int) -> None:
        with self._condition:
            digests = self._digests.setdefault(call, {})
            digests[rank] = digest
            if len(digests) > len(self._processes):
                del self._digests[call]
            differing = len(set(digests.values())) > 1
        if differing:
            ranks = ", ".join(str(each) for each in sorted(digests))
            self.fail(EngineDead(f"ranks {ranks} sampled different tokens in one step; a logits processor may differ"))

    def _wait_for_agreement(self, is_reached: Callable[[], bool], late: Sequence[int | str]) -> None:
        """Wait for AGREEMENT_SECONDS of the processes `late` at most; the caller holds the condition."""
        timer, seconds = UndelayedTimer(late), min(CHECK_SECONDS, AGREEMENT_SECONDS)
        while not self._condition.wait_for(lambda: self._failure or is_reached(), seconds):
            if timer.elapsed() >= AGREEMENT_SECONDS:
                return

    def _add_error(self, rank: int, error: CallFailed) -> None:
        """Keep the error of a rank for the call of rank 0; fail if that call succeeds, or does not end."""
        with self._condition:
            self._rank_errors.setdefault(error.call, {})[rank] = error
            self._condition.notify_all()
            self._wait_for_agreement(lambda: self._ended_call >= error.call, ["self"])
            is_shared = error.call in self._failed_calls
        if not is_shared:
            self.fail(EngineDead(f"rank {rank} failed alone in a step: {error.reason}"))

    def _process_ended(self, rank: int, how: str) -> None:
        self.fail(EngineDead(f"rank {rank} of {self._num_ranks} is lost, and the engine with it: {how}"))

    # -- in the thread that watches --------------------------------------------------------------------------------

    def _tick(self, seconds: float) -> None:
        """Watch the ranks while rank 0 waits for them, until the end of the group."""
        last = time.monotonic()
        while not self._closing.wait(seconds) and self._failure is None:
            now = time.monotonic()
            communicator, is_starting = self._communicator, self._is_starting
            if not is_starting and self._ended_call == self._call:
                self._watch.pause()
            else:
                num_collectives = None if communicator is None or is_starting else communicator.num_calls
                if (error := self._watch.tick(now - last, num_collectives)) is not None:
                    self.fail(error)
            last = now

    # -- end -------------------------------------------------------------------------------------------------------

    def on_failure(self, callback: Callable[[EngineDead], None]) -> None:
        """Call the callback when the group fails between two calls, once, in any thread; at once if it has failed.

        A failure during a call is raised by that call.
        """
        with self._condition:
            self._on_failure, failure = callback, self._failure
        if isinstance(failure, EngineDead):
            callback(failure)

    def fail(self, error: ChairliftError) -> None:
        """End the group with an error, unless it has ended already. From any thread."""
        with self._condition:
            if self._failure is not None or self._closing.is_set():
                return
            self._failure = error
            callback = self._on_failure if self._ended_call == self._call else None
            self._condition.notify_all()
        for process in self._processes:
            process.kill()
        if self._communicator is not None:
            self._communicator.abort()
        if callback is not None and isinstance(error, EngineDead):
            callback(error)

    def close(self) -> None:
        """End every process and wait for it, and the collectives of rank 0. May be called more than once."""
        with self._condition:
            self._closing.set()
            self._condition.notify_all()
        for process in self._processes:
            process.close_input()
        for process in self._processes:
            process.close()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join(EXIT_SECONDS)
        if self._communicator is not None:
            self._communicator.close()
