"""RequestProxy: carries out the actions of one request's RequestMachine, and reports what happens to it."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import orjson

from chairlift.core.errors import Unavailable, error_from_wire
from chairlift.core.router_errors import ReplicaFailed
from chairlift.protocol.sse import named_event
from chairlift.router.attempts.actions import (
    AbortAttempt,
    Action,
    CancelRequest,
    ClearTimer,
    CompleteResponse,
    DeliverBytes,
    EndWithError,
    PassResponse,
    PickReplica,
    RecordOutcome,
    ReleaseReplica,
    RespondError,
    SendAttempt,
    SetTimer,
)
from chairlift.router.attempts.attempt_reader import error_code_of
from chairlift.router.attempts.events import (
    AttemptBroken,
    ClientDisconnected,
    Event,
    FailureReason,
    NoReplica,
    ReplicaAvailable,
    ReplicaDraining,
    ReplicaPicked,
    RequestStarted,
    TimerFired,
    TimerKind,
)
from chairlift.router.attempts.final_errors import event_of_error_response
from chairlift.router.attempts.request_machine import RequestMachine
from chairlift.router.proxy.attempt_spans import ERROR_STATUS, AttemptSpans
from chairlift.router.proxy.attempt_task import OK_STATUSES, AttemptResponse, UpstreamRequest, run_attempt
from chairlift.router.proxy.client_writer import ClientWriter
from chairlift.router.proxy.upstream import Upstream
from chairlift.router.replicas.reservation import Reservation
from chairlift.web.error_responses import Header, error_object, stream_error_event
from chairlift.web.stream_keep_alive import EVENT_STREAM_HEADERS, GENERATING, WAITING

log = logging.getLogger(__name__)

MAX_UNREAD_BYTES = 262_144
"""Bytes of responses that wait while the client is slow; no more of them is read then."""

WAITING_FOR_REPLICA = b"waiting for a replica"
"""What a comment says while no replica can take the request."""

SLOW_CLIENT_SECONDS = 0.5
"""A client that blocks a write for longer than this restarts the timer of the next token."""


class ReplicaPicker(Protocol):
    """Picks and watches the replicas of one request."""

    def pick(self, action: PickReplica) -> Reservation | None:
        """Reserve a replica, None if there is none."""
        ...

    def no_replica(self, action: PickReplica) -> NoReplica:
        """Return why there is none."""
        ...

    def record_attempt(self, outcome: RecordOutcome) -> None:
        """Count an attempt that has ended."""
        ...


@dataclass(frozen=True, slots=True)
class _RunningTimer:
    handle: asyncio.TimerHandle
    event: TimerFired
    seconds: float


class RequestProxy:
    """One request of a client. Belongs to one task.

    Attributes:
        num_attempts: attempts that were sent.
        reservation: of the attempt that the response's head comes from; None before it.
        error_code: code of the error that ended the response; "" for none.
        passed_status: status of a replica's error response that was passed on; 0 for none.
    """

    def __init__(
        self, machine: RequestMachine, request: UpstreamRequest, upstream: Upstream, picker: ReplicaPicker,
        writer: ClientWriter, now: Callable[[], float], on_first_output: Callable[[bool], None],
        attempt_headers: Callable[[str, int], Sequence[Header]], spans: AttemptSpans | None = None,
    ) -> None:  # fmt: skip
        """Take the request's parts.

        `on_first_output` is called once, at the first token or, if none is seen, at the first byte of the response;
        with whether it is the first token. `attempt_headers` returns the headers of a response from its replica and
        the number of attempts. `spans` makes those of the attempts of a sampled request.
        """
        self._machine, self._request, self._upstream = machine, request, upstream
        self._picker, self._writer, self._now = picker, writer, now
        self._on_first_output, self._attempt_headers, self._spans = on_first_output, attempt_headers, spans
        self._has_output = self._has_begun = False
        self._events: deque[tuple[Event, float]] = deque()  # each with the time when it came
        self._wakeup: asyncio.Future[None] | None = None
        self._unread: asyncio.Future[None] | None = None
        self._unread_bytes = 0
        self._reservations: dict[int, Reservation] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._responses: dict[int, AttemptResponse] = {}
        self._timers: dict[tuple[TimerKind, int], _RunningTimer] = {}
        self._blocked_until = -1.0
        self._is_aborted = False
        self._started_at = now()
        self.num_attempts = 0
        self.reservation: Reservation | None = None
        self.error_code = ""
        self.passed_status = 0

    @property
    def is_waiting(self) -> bool:
        """Whether the request waits because no replica can take it now."""
        return self._machine.is_waiting

    @property
    def waiting_place(self) -> tuple[str, str, float] | None:
        """Replica and model with which the request waits for a first token, and since when; None if it may not move."""
        attempt, since = self._machine.movable_attempt, self._machine.first_sent_at
        # An event that waits may be the first token.
        if attempt is None or since is None or self._events:
            return None
        reservation = self._reservations[attempt.number]
        return reservation.replica_id, reservation.model, since

    @property
    def head(self) -> Sequence[Header]:
        """The headers of a stream that begins before its first event: those of the replica, if they are known."""
        response = self._newest_response
        return response.headers if response.is_event_stream else EVENT_STREAM_HEADERS

    @property
    def comment(self) -> bytes:
        """What a comment says in a stream that is silent; b"" for nothing, in a response that is no stream."""
        response = self._newest_response
        if response.status in OK_STATUSES and not response.is_event_stream:
            return b""
        if self.is_waiting:
            return WAITING_FOR_REPLICA
        return GENERATING if self._has_output else response.comment or WAITING

    @property
    def _newest_response(self) -> AttemptResponse:
        """The response of the attempt that was sent last, of those that go on."""
        number = max((number for number, task in self._tasks.items() if not task.done()), default=0)
        return self._responses.get(number) or AttemptResponse()

    def describe(self) -> dict[str, Any]:
        """Return what an administrator may know of the request, as JSON has it."""
        return {
            "request_id": self._request.request_id,
            "age_seconds": round(self._now() - self._started_at, 3),
            "attempts": self.num_attempts,
            "replicas": [each.replica_id for each in self._reservations.values()],
            "has_output": self._has_output,
            "is_waiting": self.is_waiting,
        }

    def move(self, replica_id: str) -> None:
        """Send the request to a replica, and leave the one where it waits."""
        if (attempt := self._machine.movable_attempt) is not None:
            self._report([ReplicaAvailable(attempt.number, replica_id)])

    async def run(self) -> None:
        """Respond to the client. Raises the error of a response that had no byte; cancelled, it aborts all attempts."""
        try:
            self._events.append((RequestStarted(), self._now()))
            while not await self._handle_events():
                if self._is_aborted:
                    await self._end_aborted()
                    return
                self._wakeup = asyncio.get_running_loop().create_future()
                await self._wakeup
                self._wakeup = None
        finally:
            try:
                self._cancel()
            finally:
                self._close()

    def abort(self) -> None:
        """End the response with an error, because the router stops."""
        self._is_aborted = True
        self._report([])

    def report_draining(self, replica_id: str) -> None:
        """Report that a replica drains, to the attempts that it has."""
        for number, reservation in self._reservations.items():
            if reservation.replica_id == replica_id:
                self._report([ReplicaDraining(number)])

    # -- events ----------------------------------------------------------------------------------------------------

    def _report(self, events: Sequence[Event]) -> None:
        now = self._now()
        self._events.extend([(event, now) for event in events])
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def _wait_until_read(self, num_bytes: int) -> "asyncio.Future[None] | None":
        self._unread_bytes += num_bytes
        if self._unread_bytes < MAX_UNREAD_BYTES:
            return None
        if self._wakeup is None:  # a write to the client has not ended
            self._machine.response.is_paused = True
        if self._unread is None:
            self._unread = asyncio.get_running_loop().create_future()
        return self._unread

    async def _handle_events(self) -> bool:
        """Handle all events that wait; return whether the response has ended."""
        while self._events:
            pieces: list[bytes] = []
            final: Action | None = None
            number = 0
            # What came while the client was slow goes out in one write.
            while self._events and final is None:
                event, arrived_at = self._events.popleft()
                if isinstance(event, TimerFired):
                    if not self._has_fired(event):
                        continue
                    reservation = self._reservations.get(event.attempt)
                    is_unhealthy = reservation is not None and reservation.is_replica_unhealthy
                    event = replace(event, is_replica_unhealthy=is_unhealthy)
                for action in self._machine.handle(event, self._now(), arrived_at):
                    if isinstance(action, DeliverBytes):
                        pieces.append(action.payload)
                        number = action.attempt
                    elif isinstance(
                        action, PassResponse | RespondError | EndWithError | CompleteResponse | CancelRequest
                    ):
                        final = action
                    else:
                        self._perform(action)
            if not self._has_output and self._machine.response.has_progress:
                self._note_first_output(is_token=True)
            # All events are handled, so the attempts may read on while the client is written to.
            self._unread_bytes = 0
            if self._unread is not None and not self._unread.done():
                self._unread.set_result(None)
                self._unread = None
            if final is not None:
                await self._finish(final, b"".join(pieces), number)
                return True
            if pieces:
                await self._deliver(b"".join(pieces), number)
        return False

    def _has_fired(self, event: TimerFired) -> bool:
        """Return whether the machine should know; a timer that was replaced, or that a slow client held, has not."""
        timer = self._timers.get((event.kind, event.attempt))
        # Compared by identity: an event of a timer that was replaced may be in the queue already.
        if timer is None or timer.event is not event:
            return False
        del self._timers[event.kind, event.attempt]
        # While the client blocked a write no event was handled: that a token is late is not the replica's fault.
        if event.kind is TimerKind.INTER_TOKEN and self._now() - self._blocked_until < timer.seconds:
            self._set_timer(SetTimer(event.kind, event.attempt, timer.seconds))
            return False
        return True

    # -- the client ------------------------------------------------------------------------------------------------

    async def _deliver(self, payload: bytes, number: int) -> None:
        response = self._begin_response(number)
        since = self._now()
        await self._writer.write(payload, response.status, response.headers)
        if (now := self._now()) - since > SLOW_CLIENT_SECONDS:
            self._blocked_until = now

    async def _end_aborted(self) -> None:
        """Abort all attempts and report that the router stops. Raises Unavailable where no byte was sent."""
        self._cancel()
        error = Unavailable("the router stops, and the response was not complete", state="draining", retry_after=1.0)
        self.error_code = error.code
        if not self._writer.has_started:
            raise error
        payload = orjson.dumps({"error": error_object(error, self._request.request_id)})
        await self._writer.end(named_event(b"error", payload), 200, ())

    async def _finish(self, action: Action, payload: bytes, number: int) -> None:
        """Send the end of the response. Raises the error of one that had no byte of an attempt."""
        match action:
            case CompleteResponse(attempt):
                response = self._begin_response(number or attempt)
                if self._writer.has_started and not response.is_event_stream:  # by a comment
                    error = ReplicaFailed("the replica has answered a request for a stream with another response")
                    self.error_code = error.code
                    payload = stream_error_event(error, self._request.request_id)
                await self._writer.end(payload, response.status, response.headers)
            case PassResponse(attempt, status, body):
                if status >= ERROR_STATUS:
                    self.error_code, self.passed_status = error_code_of(body), status
                self._note_replica(attempt)
                if self._writer.has_started:  # by a comment
                    body = event_of_error_response(status, body)
                await self._writer.end(body, status, self._responses[attempt].headers)
            case EndWithError(code, last):
                self.error_code = code
                response = self._begin_response(number)
                await self._writer.end(payload + last, response.status, response.headers)
            case RespondError(_, code, message, retry_after, param):
                details: dict[str, Any] = {"retry_after": retry_after, "param": param}
                raise error_from_wire(code, message, {name: each for name, each in details.items() if each is not None})

    def _begin_response(self, number: int) -> AttemptResponse:
        response = self._responses.get(number) or AttemptResponse(200)
        if not self._has_begun:
            self._has_begun = True
            if not self._has_output:
                self._note_first_output(is_token=self._machine.response.fields.is_streamed)
            self._note_replica(number)
        return response

    def _note_first_output(self, *, is_token: bool) -> None:
        self._has_output = True
        self._on_first_output(is_token)

    def _note_replica(self, number: int) -> None:
        self.reservation = self._reservations.get(number)
        if not self._writer.has_started:  # a comment may have begun the response
            replica_id = "" if self.reservation is None else self.reservation.replica_id
            self._writer.add_headers(self._attempt_headers(replica_id, self.num_attempts))

    # -- attempts and timers ---------------------------------------------------------------------------------------

    def _perform(self, action: Action) -> None:
        match action:
            case PickReplica():
                self._pick(action)
            case SendAttempt():
                self._send(action)
            case AbortAttempt(attempt):
                if (task := self._tasks.pop(attempt, None)) is not None:
                    task.cancel()
            case SetTimer():
                self._set_timer(action)
            case ClearTimer(kind, attempt):
                if (timer := self._timers.pop((kind, attempt), None)) is not None:
                    timer.handle.cancel()
            case RecordOutcome():
                self._record(action)
            case ReleaseReplica(attempt):
                self._reservations[attempt].release()

    def _record(self, action: RecordOutcome) -> None:
        """Report an attempt to its replica's health and load."""
        if self._machine.response.is_paused:
            action = replace(action, inter_token_seconds=None)  # it has the client's time, not the replica's
        self._picker.record_attempt(action)
        reservation, now = self._reservations[action.attempt], self._now()
        if self._spans is not None:
            self._spans.end(action, self._responses.get(action.attempt, AttemptResponse()).status, now)
        if action.first_token_seconds is not None:
            reservation.record_first_token(action.first_token_seconds, now)
        if action.inter_token_seconds is not None:
            reservation.record_inter_token_latency(action.inter_token_seconds, now)
        if (response := self._responses.get(action.attempt)) is not None and response.load_header:
            reservation.record_load_header(response.load_header, now)
        reservation.record(action.outcome, now)

    def _pick(self, action: PickReplica) -> None:
        reservation = self._picker.pick(action)
        if reservation is None:
            self._report([self._picker.no_replica(action)])
            return
        self._reservations[action.attempt] = reservation
        self._report([ReplicaPicked(
            action.attempt, reservation.replica_id, reservation.incarnation, reservation.fingerprint,
            reservation.is_resumable,
        )])  # fmt: skip

    def _send(self, action: SendAttempt) -> None:
        self.num_attempts += 1
        response = self._responses[action.attempt] = AttemptResponse()
        request = self._request if self._spans is None else self._spans.start(action, self._request)
        task = self._tasks[action.attempt] = asyncio.create_task(run_attempt(
            self._upstream, request, action, response, self._report, self._wait_until_read
        ))  # fmt: skip
        task.add_done_callback(partial(self._on_task_end, action.attempt))

    def _on_task_end(self, number: int, task: "asyncio.Task[None]") -> None:
        """Report an attempt that a bug of ours has ended."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("attempt %d of request %s failed", number, self._request.request_id, exc_info=error)
            self._report([AttemptBroken(number, FailureReason.UNAVAILABLE)])

    def _set_timer(self, action: SetTimer) -> None:
        key = action.kind, action.attempt
        if (timer := self._timers.get(key)) is not None:
            timer.handle.cancel()
        event = TimerFired(action.kind, action.attempt)
        handle = asyncio.get_running_loop().call_later(action.seconds, self._report, (event,))
        self._timers[key] = _RunningTimer(handle, event, action.seconds)

    def _cancel(self) -> None:
        """Cancel the request unless it has its final answer."""
        if not self._machine.is_final:
            for action in self._machine.handle(ClientDisconnected(), self._now()):
                self._perform(action)

    def _close(self) -> None:
        """End what still runs; every replica is released, however the request ended."""
        for task in self._tasks.values():
            task.cancel()
        for timer in self._timers.values():
            timer.handle.cancel()
        for reservation in self._reservations.values():
            reservation.release()
