"""RankGroup: the processes of all ranks but rank 0; it runs each call on every rank and ends them together.

call      sent to every rank, then run here. Ranks that succeed report nothing but a digest of the sampled tokens
error     must come on every rank at the same collective; then the step is void and the ranks go on
          on some ranks only: their state differs, so the group fails
failure   also the end of a process, a collective that fails or lasts too long, different tokens: the other
          processes are killed, which ends the collectives in progress; each later call raises EngineDead
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from chairlift.core.errors import ChairliftError, EngineDead
from chairlift.model.distributed.communicator import START_SECONDS, Communicator
from chairlift.model.distributed.rank_messages import (
    Call,
    CallFailed,
    Collected,
    FromRank,
    Loading,
    Started,
    StartFailed,
    StartRank,
    encode,
)
from chairlift.model.distributed.rank_process import RankProcess

AGREEMENT_SECONDS = 5.0
"""Seconds that an error of a call may take to come on every rank."""

CAUSE_SECONDS = 2.0
"""Seconds in which the end of a process is noticed that a failed collective hints at."""

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
        self._is_closing = False

    # -- start -----------------------------------------------------------------------------------------------------

    def start(self, starts: Sequence[StartRank]) -> None:
        """Start a process for each rank and wait until all can connect. Raises EngineDead."""
        try:
            for each in starts:
                self._processes.append(RankProcess(each, self._receive, self._process_ended))
        except OSError as error:
            raise EngineDead(f"the process of a rank cannot be started: {error}") from error
        self._wait_for(self._loading, IMPORT_SECONDS)

    def wait_until_started(self) -> None:
        """Wait until every rank has started. Raises the first error of a rank's start."""
        self._wait_for(self._started, START_SECONDS)

    def attach(self, communicator: Communicator) -> None:
        """Set the collectives of rank 0, which end when the group fails."""
        self._communicator = communicator

    def _wait_for(self, ranks: set[int], seconds: float) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._failure or len(ranks) == len(self._processes), seconds)
            missing = [process.rank for process in self._processes if process.rank not in ranks]
        if missing:
            self.fail(EngineDead(f"rank {missing[0]} did not start within {seconds:g} s"))
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
            raise self._agreed_error(error) from error
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
            self._condition.wait_for(lambda: self._failure, CAUSE_SECONDS)
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
            self._condition.wait_for(lambda: self._failure or len(errors) == len(self._processes), AGREEMENT_SECONDS)
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
            case StartFailed():
                self.fail(message.error())
            case Collected(call, digest):
                self._add_digest(rank, call, digest)
            case CallFailed():
                self._add_error(rank, message)

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

    def _add_error(self, rank: int, error: CallFailed) -> None:
        """Keep the error of a rank for the call of rank 0; fail if that call succeeds, or does not end."""
        with self._condition:
            self._rank_errors.setdefault(error.call, {})[rank] = error
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._failure or self._ended_call >= error.call, AGREEMENT_SECONDS)
            is_shared = error.call in self._failed_calls
        if not is_shared:
            self.fail(EngineDead(f"rank {rank} failed alone in a step: {error.reason}"))

    def _process_ended(self, rank: int, how: str) -> None:
        self.fail(EngineDead(f"rank {rank} of {len(self._processes) + 1} is lost, and the engine with it: {how}"))

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
            if self._failure is not None or self._is_closing:
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
        """End every process and wait for it. May be called more than once."""
        with self._condition:
            self._is_closing = True
            self._condition.notify_all()
        for process in self._processes:
            process.close()
