"""RequestMachine: decides what happens to one client's request until it has exactly one final answer.

    RequestStarted ──> pick ──> connect ──> sent ──> streaming ──> complete
                        ^          │         │           │
                        └──────────┴─ replay ┴─ resume ──┘       no replica, attempts or deadline left ──> error

No I/O and no clock: the proxy reports events with the time and carries out the actions it gets back, in order. An
attempt that has ended is forgotten, so whatever arrives from it later has no effect.
"""

from collections.abc import Callable
from typing import Any, ClassVar

from chairlift.protocol.sse import DONE
from chairlift.router.attempts import actions as act
from chairlift.router.attempts import events as ev
from chairlift.router.attempts.actions import Action, FinalAction, ResponseMode
from chairlift.router.attempts.attempt import Attempt, AttemptLimits, AttemptPhase, AttemptPurpose
from chairlift.router.attempts.attempt_history import AttemptHistory
from chairlift.router.attempts.chunks import BadChunk
from chairlift.router.attempts.client_response import ClientResponse
from chairlift.router.attempts.events import AttemptEvent, Event, FailureReason, TimerKind
from chairlift.router.attempts.final_errors import FailureCause, end_with_reported_error, respond_reported_error
from chairlift.router.attempts.generation_fields import GenerationFields
from chairlift.router.attempts.hedging import HedgeController
from chairlift.router.attempts.open_attempts import OpenAttempts
from chairlift.router.attempts.retry_budget import RetryBudget
from chairlift.router.health.breaker import HealthOutcome


class RequestMachine:
    """The attempts of one request.

    Attributes:
        history: the attempts so far.
        response: what the client has of its response.
        is_waiting: no attempt is open, because no replica can take one now.
        first_sent_at: when the request was first sent to a replica; None before.
    """

    def __init__(
        self, fields: GenerationFields, limits: AttemptLimits, budget: RetryBudget,
        hedging: HedgeController | None = None, *, request_id: str = "", deadline: float | None = None,
    ) -> None:  # fmt: skip
        """Start with no attempt; `deadline` is on the clock of `now`. Budget and hedging belong to the whole pool."""
        self._limits = limits
        self._budget, self._hedging, self._deadline, self._request_id = budget, hedging, deadline, request_id
        self.response = ClientResponse(fields)
        self.history, self._open = AttemptHistory(limits), OpenAttempts(limits, budget)
        self._is_started = self._is_final = self.is_waiting = False
        self.first_sent_at: float | None = None
        self._now = self._arrived_at = 0.0

    @property
    def is_final(self) -> bool:
        """Whether the request has its final answer."""
        return self._is_final

    @property
    def movable_attempt(self) -> Attempt | None:
        """The attempt with which the request waits for its first token; None if it may not move to another replica."""
        is_fixed = self._is_final or self.response.has_sent or self.response.has_progress
        return self._open.waiting if self.history.may_move and not is_fixed else None

    def handle(self, event: Event, now: float, arrived_at: float | None = None) -> list[Action]:
        """Return what to do about an event; it came at `arrived_at`, by default now, both in monotonic seconds."""
        self._now, self._arrived_at = now, now if arrived_at is None else arrived_at
        actions: list[Action] = []
        self._open.actions = actions
        if not self._is_final:
            if not self._open.keep_frozen(event):
                self._HANDLERS[type(event)](self, event)
        # The request has ended while the replica was picked: its reservation still has to be given back.
        elif isinstance(event, ev.ReplicaPicked):
            self._emit(act.ReleaseReplica(event.attempt, event.replica_id))
        return actions

    def _emit(self, action: Action) -> None:
        self._open.actions.append(action)

    def _start(self, _event: ev.RequestStarted) -> None:
        assert not self._is_started, "the request has started before"
        self._is_started = True
        self._budget.start_request()
        if self._hedging is not None:
            self._hedging.record_request()
        if self._deadline is not None:
            # The replica knows the deadline, too: its own error may still come before the router's.
            left = max(0.0, self._deadline - self._now) + self._limits.deadline_grace_seconds
            self._emit(act.SetTimer(TimerKind.DEADLINE, 0, left))
        self._pick(AttemptPurpose.FIRST)

    def _pick(self, purpose: AttemptPurpose, *, has_retry_permit: bool = False, replica_id: str = "") -> None:
        attempt = self._open.open(purpose, has_retry_permit=has_retry_permit)
        label, fingerprint = purpose.label(has_progress=self.response.has_progress), self.response.required_fingerprint
        attempt.picks_any_replica = not fingerprint
        self._emit(act.PickReplica(attempt.number, self.history.excluded, fingerprint, replica_id, label))

    def _on_picked(self, event: ev.ReplicaPicked) -> None:
        attempt = self._open.get(event.attempt)
        if attempt is None:
            self._emit(act.ReleaseReplica(event.attempt, event.replica_id))
            return
        assert attempt.phase is AttemptPhase.PICKING, f"attempt {event.attempt} has a replica"
        if not self.response.may_continue_on(event):
            self._emit(act.ReleaseReplica(event.attempt, event.replica_id))
            self._go_on_without(attempt, None, frozenset({(event.replica_id, event.incarnation)}))
            return
        # From now on two replicas compute the same tokens; only one of them may add to the response.
        for other in self._open.others(attempt) if attempt.purpose is AttemptPurpose.HANDOVER else ():
            self._open.freeze(other)
        is_resumable = self.response.is_resumable_on(event)
        attempt.replica, attempt.is_resumable = event, is_resumable
        attempt.mode, attempt.phase = self.response.mode(is_resumable=is_resumable), AttemptPhase.CONNECTING
        self.history.record_replica(event)
        left = None if self._deadline is None else max(0.0, self._deadline - self._now)
        # Another server may reject members that it does not know.
        members = self.response.members() if is_resumable else {}
        self._emit(act.SendAttempt(attempt.number, event.replica_id, attempt.mode, members, left, attempt.purpose))
        self._open.set_timer(attempt, TimerKind.CONNECT)

    def _on_no_replica(self, event: ev.NoReplica) -> None:
        attempt = self._open.get(event.attempt)
        if attempt is not None and attempt.phase is AttemptPhase.PICKING:
            self._go_on_without(attempt, event.retry_after, event.ready)

    def _go_on_without(self, attempt: Attempt, retry_after: float | None, ready: frozenset[tuple[str, str]]) -> None:
        """Give up a pick; unless another attempt is open, start again, wait, or fail."""
        self._open.end(attempt, HealthOutcome.NEUTRAL, aborts=False)
        if attempt.purpose is AttemptPurpose.HEDGE and self._hedging is not None:
            self._hedging.return_hedge()
        self.history.record_no_replica(retry_after, ready, self._now)
        if len(self._open):
            return
        # Nothing was sent to the client, so any replica may start the response again.
        if attempt.purpose is AttemptPurpose.MOVE or (self.response.has_progress and not self.response.has_sent):
            self.response.restart()
            self._pick_required()
        elif not self._wait_for_replica():
            self._fail(FailureCause.REPLICAS)

    def _pick_required(self) -> None:
        self._budget.acquire_retry(self._now, is_required=True)
        self._pick(AttemptPurpose.RETRY, has_retry_permit=True)

    def _wait_for_replica(self) -> bool:
        """Wait for a full replica or another one; return whether there is time for that."""
        seconds = self.history.wait_seconds(self._now, has_sent=self.response.has_sent)
        if seconds is not None:
            self.is_waiting = True
            self._emit(act.SetTimer(TimerKind.RETRY, 0, seconds))
        return seconds is not None

    def _on_connect_failed(self, event: ev.ConnectFailed) -> None:
        attempt = self._open.get(event.attempt)
        # A request that was sent on a connection which the replica had closed is sent again on a new one.
        if attempt is not None and attempt.phase in (AttemptPhase.CONNECTING, AttemptPhase.SENT):
            self._fail_attempt(attempt, FailureReason.CONNECT, HealthOutcome.FAULT, aborts=False)

    def _on_sent(
        self, event: ev.RequestSent | ev.ResponseReceived | ev.CommentReceived | AttemptEvent
    ) -> Attempt | None:  # fmt: skip
        """Return the event's attempt if it is open and has a replica, and note that its request was sent."""
        attempt = self._open.get(event.attempt)
        if attempt is None or attempt.phase is not AttemptPhase.CONNECTING:
            return None if attempt is None or attempt.phase is AttemptPhase.PICKING else attempt
        attempt.phase, attempt.sent_at = AttemptPhase.SENT, self._arrived_at
        # The place in the other queue is given up only now that this replica has the request.
        for other in self._open.others(attempt) if attempt.purpose is AttemptPurpose.MOVE else ():
            self._open.end(other, HealthOutcome.NEUTRAL)
            self.history.allow(other.replica)
        self.first_sent_at = self._now if self.first_sent_at is None else self.first_sent_at
        self._open.clear_timer(attempt)
        self._open.set_timer(attempt, TimerKind.FIRST_TOKEN)
        # A response that is read whole shows no first token, so it cannot be found late.
        may_hedge = attempt.purpose is AttemptPurpose.FIRST and attempt.mode is not ResponseMode.WHOLE
        if self._hedging is not None and may_hedge:
            delay = self._hedging.delay_seconds()
            if delay is not None and delay < self._limits.first_token_timeout_seconds:
                self._open.set_hedge_timer(attempt, delay)
        return attempt

    def _on_response(self, event: ev.ResponseReceived) -> None:
        attempt = self._on_sent(event)
        if attempt is None or 200 <= event.status < 300:
            return
        if event.status in ev.FULL_STATUSES:
            assert attempt.replica is not None, "an attempt that was sent has a replica"
            self.history.record_full(attempt.replica, event.retry_after)
            self._fail_attempt(attempt, FailureReason.REJECTED, HealthOutcome.NEUTRAL, aborts=False)
        elif event.status >= 500:
            self._fail_attempt(attempt, FailureReason.STATUS, HealthOutcome.FAULT, aborts=False)
        elif self.response.has_progress or attempt.purpose is AttemptPurpose.HANDOVER:
            # The router's `resume` is at fault, not the client's request.
            reason = FailureReason.FINGERPRINT if event.status == 409 else FailureReason.RESUME_REJECTED
            self._fail_attempt(attempt, reason, HealthOutcome.NEUTRAL, aborts=False)
        else:
            self._open.end(attempt, HealthOutcome.NEUTRAL, aborts=False)
            self._finish(act.PassResponse(event.attempt, event.status, event.body))

    def _on_comment(self, event: ev.CommentReceived) -> None:
        attempt = self._on_sent(event)
        if attempt is not None:
            attempt.last_comment_at = self._arrived_at

    def _on_chunks(self, event: ev.ChunksReceived) -> None:
        attempt = self._on_sent(event)
        if attempt is None:
            return
        parts: list[bytes] = []
        is_bad = False
        try:
            for chunk in event.chunks:
                if not self.response.is_held(attempt, chunk):
                    if attempt.phase is not AttemptPhase.STREAMING:
                        self._on_first_token(attempt)
                    attempt.record_tokens(len(chunk.token_ids), self._arrived_at)
                    parts.append(self.response.append(attempt, chunk))
        except BadChunk:
            is_bad = True
        # What came before the bad chunk is right, and the client may have it.
        self._deliver(attempt, b"".join(parts))
        if is_bad:
            self._fail_attempt(attempt, FailureReason.BAD_STREAM, HealthOutcome.FAULT)
            return
        for other in self._open.others(attempt) if len(self._open) > 1 else ():
            if other.picks_any_replica and self.response.has_progress:  # now only an equal fingerprint will do
                self._open.end(other, HealthOutcome.NEUTRAL)
                self._pick(AttemptPurpose.HANDOVER)

    def _on_first_token(self, attempt: Attempt) -> None:
        """Keep the attempt with the first token alone; a pick for a drain goes on."""
        for other in self._open.others(attempt):
            if other.purpose is not AttemptPurpose.HANDOVER or other.phase is not AttemptPhase.PICKING:
                self._open.end(other, HealthOutcome.NEUTRAL)
        if not self.response.has_progress:
            assert attempt.replica is not None, "an attempt that was sent has a replica"
            self.response.fingerprint = attempt.replica.fingerprint if attempt.is_resumable else ""
            if self._hedging is not None and self.first_sent_at is not None:
                self._hedging.record_first_token(self._now - self.first_sent_at)
        self.history.record_token()
        self._open.release_permit(attempt)
        self._open.clear_hedge_timer()
        self._open.clear_timer(attempt)
        self._open.set_timer(attempt, TimerKind.INTER_TOKEN)

    def _on_ended(self, event: ev.ResponseEnded) -> None:
        attempt = self._on_sent(event)
        if attempt is None:
            return
        try:
            payload = self.response.end(attempt, event.payload)
        except BadChunk:
            self._fail_attempt(attempt, FailureReason.BAD_STREAM, HealthOutcome.FAULT)
            return
        # Only now: a response without a valid end is a fault of its replica.
        self._open.end(attempt, HealthOutcome.SUCCESS, aborts=False)
        self._deliver(attempt, payload)
        self._finish(act.CompleteResponse(attempt.number))

    def _on_broken(self, event: ev.AttemptBroken) -> None:
        attempt = self._on_sent(event)
        if attempt is not None:
            is_neutral = event.reason is FailureReason.UNAVAILABLE
            outcome = HealthOutcome.NEUTRAL if is_neutral else HealthOutcome.FAULT
            self._fail_attempt(attempt, event.reason, outcome, aborts=event.reason not in ev.LOST_REPLICA)

    def _on_request_error(self, event: ev.RequestErrorReported) -> None:
        attempt = self._on_sent(event)
        if attempt is None:
            return
        if self.response.has_sent:
            self._deliver(attempt, self.response.flush(attempt))
        attempt.failure = "request_error"
        self._open.end(attempt, HealthOutcome.NEUTRAL)
        self._finish((end_with_reported_error if self.response.has_sent else respond_reported_error)(event.payload))

    def _on_draining(self, event: ev.ReplicaDraining) -> None:
        """Hand the attempt over.

        It goes on until a replica was picked, then its events wait for that one's first token; if that one fails, they
        count after all.
        """
        attempt = self._open.get(event.attempt)
        may_move = attempt is not None and attempt.phase in (AttemptPhase.SENT, AttemptPhase.STREAMING)
        if attempt is None or not may_move or not attempt.is_resumable or attempt.frozen is not None:
            return
        others = self._open.others(attempt)
        # Another replica has the request already, so this one is not needed.
        if any(other.replica is not None for other in others):
            self._open.end(attempt, HealthOutcome.NEUTRAL)
            self._thaw()
        # A pick that is under way serves the drain, too.
        elif others:
            others[0].purpose = AttemptPurpose.HANDOVER
        else:
            self._pick(AttemptPurpose.HANDOVER)

    def _on_available(self, event: ev.ReplicaAvailable) -> None:
        """Move the request: it waits where it is until it was sent to the other replica."""
        attempt = self.movable_attempt
        if attempt is not None and attempt.number == event.attempt:
            self.history.num_moves += 1
            self._pick(AttemptPurpose.MOVE, replica_id=event.replica_id)

    def _on_timer(self, event: ev.TimerFired) -> None:
        attempt = self._open.get(event.attempt)
        if event.kind is TimerKind.DEADLINE:
            self._deadline = None  # it runs no more
            self._fail(FailureCause.DEADLINE)
        elif event.kind is TimerKind.RETRY and self.is_waiting:
            self.is_waiting = False
            # The replicas that were full are what the request has waited for.
            self.history.forget_full()
            self._pick_required()
        elif attempt is not None and event.kind is TimerKind.HEDGE:
            self._hedge(attempt)
        elif attempt is not None and attempt.timer is event.kind:
            attempt.timer = None
            self._on_attempt_timer(attempt, event.kind, is_unhealthy=event.is_replica_unhealthy)

    def _on_attempt_timer(self, attempt: Attempt, kind: TimerKind, *, is_unhealthy: bool) -> None:
        is_lost = is_unhealthy and kind is TimerKind.FIRST_TOKEN
        # Where probes fail, comments prove nothing.
        last_sign_at = attempt.last_token_at if is_unhealthy else attempt.last_sign_at
        if last_sign_at is not None and not is_lost:
            left = last_sign_at + self._open.limit(kind) - self._now
            if left > ev.TIMER_TOLERANCE_SECONDS:  # tokens do not set the timer anew; that would cost more than they do
                self._open.set_timer(attempt, kind, left)
                return
        reason = FailureReason.UNRESPONSIVE if is_lost else ev.TIMEOUTS[kind]
        if kind is TimerKind.FIRST_TOKEN and attempt.mode is ResponseMode.WHOLE and not is_lost:
            self._open.set_timer(attempt, kind)  # only health checks tell whether a response without tokens is late
        else:
            self._fail_attempt(attempt, reason, HealthOutcome.FAULT)

    def _hedge(self, attempt: Attempt) -> None:
        """Make a second attempt beside one whose first token is late."""
        if not self._open.hedge_timer_fired(attempt) or attempt.phase is not AttemptPhase.SENT or len(self._open) > 1:
            return
        if self._hedging is not None and self._hedging.acquire_hedge():
            self._pick(AttemptPurpose.HEDGE)

    def _fail_attempt(
        self, attempt: Attempt, reason: FailureReason, outcome: HealthOutcome, *, aborts: bool = True
    ) -> None:
        """End a failed attempt; make another one unless one is open."""
        attempt.failure = reason
        self._open.end(attempt, outcome, aborts=aborts)
        if attempt.is_failure_counted:
            has_progress = self.response.has_progress
            self.history.record_failure(reason, has_progress=has_progress, now=self._now, replica=attempt.replica)
        if not len(self._open):
            self._retry(attempt, reason)
        else:
            self._thaw()

    def _thaw(self) -> None:
        """Let an attempt that was to be handed over go on, if it is the only one left, with what it brought since."""
        for attempt in self._open if len(self._open) == 1 else ():
            for event in self._open.thaw(attempt):
                if not self._is_final:
                    self._HANDLERS[type(event)](self, event)

    def _retry(self, attempt: Attempt, reason: FailureReason) -> None:
        """Replay or resume the request on another replica, if anything is left to be done and may be tried."""
        response = self.response
        # The client has all tokens and the finish reasons, so the router can write the end itself.
        if response.lacks_only_end:
            self._emit(act.DeliverBytes(attempt.number, DONE))
            self._finish(act.CompleteResponse(attempt.number))
        # The client has bytes, and no other replica can go on behind them.
        elif response.has_sent and not response.fingerprint:
            self._fail(FailureCause.UNRESUMABLE)
        elif not self.history.has_attempts_left:
            self._fail(FailureCause.ATTEMPTS)
        else:
            # Without a byte at the client the tokens need not be kept: any replica may start again.
            if reason is FailureReason.RESUME_REJECTED and not response.has_sent:
                response.restart()
            is_required = response.has_progress or not attempt.is_failure_counted or reason in ev.LOST_REPLICA
            if self._budget.acquire_retry(self._now, is_required=is_required):
                self._pick(AttemptPurpose.RETRY, has_retry_permit=True)
            else:
                self._fail(FailureCause.BUDGET)

    def _deliver(self, attempt: Attempt, payload: bytes) -> None:
        if payload:
            self.response.has_sent = True
            self._emit(act.DeliverBytes(attempt.number, payload))

    def _fail(self, cause: FailureCause) -> None:
        failure = self.history.failure(cause)
        self._finish(failure.end_stream(self._request_id) if self.response.has_sent else failure.respond())

    def _finish(self, action: FinalAction) -> None:
        """End the request with its final answer; nothing stays open."""
        # Iterating over the attempts yields a copy, so they can be ended meanwhile.
        for attempt in self._open:
            self._open.end(attempt, HealthOutcome.NEUTRAL)
        if self._is_started:
            self._budget.end_request()
            if self._deadline is not None:
                self._emit(act.ClearTimer(TimerKind.DEADLINE, 0))
        if self.is_waiting:
            self._emit(act.ClearTimer(TimerKind.RETRY, 0))
        self._is_final = True
        self._emit(action)

    _HANDLERS: ClassVar[dict[type, Callable[["RequestMachine", Any], object]]] = {
        ev.RequestStarted: _start,
        ev.ReplicaPicked: _on_picked,
        ev.NoReplica: _on_no_replica,
        ev.ConnectFailed: _on_connect_failed,
        ev.RequestSent: _on_sent,
        ev.ResponseReceived: _on_response,
        ev.CommentReceived: _on_comment,
        ev.ChunksReceived: _on_chunks,
        ev.ResponseEnded: _on_ended,
        ev.AttemptBroken: _on_broken,
        ev.RequestErrorReported: _on_request_error,
        ev.ReplicaDraining: _on_draining,
        ev.ReplicaAvailable: _on_available,
        ev.TimerFired: _on_timer,
        ev.ClientDisconnected: lambda self, _: self._finish(act.CancelRequest()),
    }
