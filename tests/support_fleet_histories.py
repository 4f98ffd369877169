"""FleetHistory: one seeded history of a router with several replicas, requests and faults in virtual time.

The router's decisions are the production code: RequestMachine, ReplicaSet, health, policies and retry budget. Replicas
are a pure function of the seed, so what a client must receive is known.
"""

import heapq
import itertools
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from chairlift.core.load_report import ReplicaState
from chairlift.protocol.sse import DONE
from chairlift.router.attempts import actions as act
from chairlift.router.attempts import events as ev
from chairlift.router.attempts.actions import Action
from chairlift.router.attempts.attempt import AttemptLimits
from chairlift.router.attempts.chunks import parse_chunk
from chairlift.router.attempts.events import FailureReason, TimerKind
from chairlift.router.attempts.generation_fields import GenerationFields
from chairlift.router.attempts.request_machine import RequestMachine
from chairlift.router.attempts.retry_budget import RetryBudget
from chairlift.router.endpoint import Endpoint, ReplicaKind
from chairlift.router.health.breaker import HealthOutcome
from chairlift.router.health.config import HealthConfig
from chairlift.router.health.health_state import HealthState
from chairlift.router.health.replica_load import ReplicaLoad
from chairlift.router.policies.registry import POLICY_NAMES, make_policy
from chairlift.router.policies.routing_request import RoutingRequest
from chairlift.router.proxy.request_mover import RequestMover
from chairlift.router.replica_set import ReplicaSet
from chairlift.router.replicas.replica_status import ReplicaStatus
from chairlift.router.replicas.reservation import Reservation
from support_attempts import chunk_event

MODEL = "m"
LIMITS = AttemptLimits(
    connect_timeout_seconds=1, first_token_timeout_seconds=5, inter_token_timeout_seconds=2, resume_wait_seconds=5
)
FINAL = (act.PassResponse, act.RespondError, act.EndWithError, act.CompleteResponse, act.CancelRequest)


def token(seed: int, position: int) -> int:
    return zlib.crc32(f"{seed} {position}".encode()) % 26


def text(seed: int, num_tokens: int) -> str:
    return "".join(chr(97 + token(seed, position)) for position in range(num_tokens))


def is_healthy(status: ReplicaStatus) -> bool:
    """Return whether a replica is healthy."""
    return status.state is HealthState.HEALTHY


@dataclass(slots=True)
class SimulatedReplica:
    """A replica's state in the world, not as the router sees it."""

    url: str
    incarnation: int = 1
    is_up: bool = True
    is_stalled: bool = False
    is_full: bool = False
    fails: bool = False  # answers 500


@dataclass(slots=True)
class SimulatedRequest:
    """One client's request and what it has received."""

    number: int
    num_tokens: int
    is_invalid: bool
    machine: RequestMachine
    handle: Callable[["SimulatedRequest", ev.Event], None]
    reservations: dict[int, Reservation] = field(default_factory=dict)
    live: set[int] = field(default_factory=set)  # attempts whose connection is open
    timers: dict[tuple[TimerKind, int], int] = field(default_factory=dict)
    received: bytes = b""
    finals: list[Action] = field(default_factory=list)

    @property
    def waiting_place(self) -> tuple[str, str, float] | None:
        """Replica, model and time of the wait for a first token; see MovableRequest."""
        attempt, since = self.machine.movable_attempt, self.machine.first_sent_at
        return (
            None if attempt is None or since is None else (self.reservations[attempt.number].replica_id, MODEL, since)
        )

    def move(self, replica_id: str) -> None:
        """Let the request move to a replica."""
        attempt = self.machine.movable_attempt
        assert attempt is not None
        self.handle(self, ev.ReplicaAvailable(attempt.number, replica_id))


class FleetHistory:
    """Runs one history; `check` holds at its end, other rules at every step."""

    def __init__(self, seed: int, *, only_client_errors: bool = False) -> None:
        self.random = random = Random(seed)
        self.only_client_errors = only_client_errors
        self.wait_seconds = random.choice((0.0, 0.0, 4.0))  # until the first token, and in load reports
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.replicas = {url: SimulatedReplica(url) for url in (f"http://r{i}:1" for i in range(random.randint(2, 5)))}
        self.set = ReplicaSet(HealthConfig(has_active_probes=False))
        self.set.update(self._endpoints(), self.now)
        for replica in self.replicas.values():
            self._report(replica)
        self.policy = make_policy(random.choice(POLICY_NAMES), seed)
        self.budget = RetryBudget()
        self.requests: list[SimulatedRequest] = []
        self.num_moves = 0
        self.set.listeners.append(RequestMover(self.set, self.requests, lambda: self.now, self._move_later))
        is_burst = self.wait_seconds > 0
        for number in range(random.randint(5, 25)):
            at = random.uniform(0, 2 if is_burst else 20)
            self._at(at, lambda number=number: self._arrive(number))
        if is_burst:
            self._at(0.0, lambda: self._drain(3))  # until the burst waits
        if not only_client_errors:
            for _ in range(random.randint(0, 12)):
                self._at(random.uniform(0, 25), random.choice((
                    self._crash, self._crash, self._stall, self._fill, self._break, self._drop_from_discovery,
                    self._jump, self._drain,
                )))  # fmt: skip

    def run(self) -> None:
        """Run until nothing is left to do."""
        for _ in range(200_000):
            if not self._heap:
                return
            at, _, do = heapq.heappop(self._heap)
            self.now = max(self.now, at)
            do()
        raise AssertionError("the history does not end")

    def check(self) -> None:
        """Check what holds at the end of every history."""
        for request in self.requests:
            assert len(request.finals) == 1, f"request {request.number} has {len(request.finals)} final answers"
            assert all(each.is_released for each in request.reservations.values())
            self._check_bytes(request)
        assert self.budget.active_requests == self.budget.active_retries == 0
        assert all(each.open_requests == 0 for each in self.set.statuses(self.now))
        if self.only_client_errors:
            assert all(each.num_ejections == 0 for each in self.set.statuses(self.now)), "4xx tripped a breaker"

    def _check_bytes(self, request: SimulatedRequest) -> None:
        contents = "".join(chr(part[0]) for part in request.received.split(b'"content":"')[1:])
        expected = text(request.number, request.num_tokens)
        assert expected.startswith(contents), f"{contents} is no beginning of {expected}"
        if isinstance(request.finals[0], act.CompleteResponse):
            assert contents == expected and request.received.endswith(DONE)
        else:
            assert DONE not in request.received

    # -- the world -------------------------------------------------------------------------------------------------

    def _at(self, at: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (at, next(self._order), do))

    def _after(self, seconds: float, do: Callable[[], None]) -> None:
        self._at(self.now + seconds, do)

    def _endpoints(self) -> list[Endpoint]:
        return [Endpoint(url=url, kind=ReplicaKind.CHAIRLIFT, models=(MODEL,)) for url in self.replicas]

    def _report(self, replica: SimulatedReplica) -> None:
        """Let the router have a load report, which names process and weights."""
        known = self.set._replicas.get(replica.url)
        if known is not None and replica.is_up:
            load = ReplicaLoad(
                state=ReplicaState.READY, incarnation=f"{replica.url} {replica.incarnation}",
                fingerprints={MODEL: "w"}, at_seconds=self.now, max_running_requests=64,
                expected_wait_seconds=self.wait_seconds if known.open_requests > 1 else 0.0,
            )  # fmt: skip
            self.set.record_load(known, load, self.now)

    def _move_later(self, seconds: float, move: Callable[[], object]) -> None:
        """Let requests move after some seconds, with load reports of that time."""

        def report_and_move() -> None:
            for replica in self.replicas.values() if any(each.live for each in self.requests) else ():
                self._report(replica)
            move()

        self._after(seconds, report_and_move)

    def _victim(self) -> SimulatedReplica:
        return self.random.choice(list(self.replicas.values()))

    def _crash(self) -> None:
        replica = self._victim()
        replica.is_up = False
        for request, number in self._attempts_on(replica):
            self._break_attempt(request, number, FailureReason.RESET)
        self._after(self.random.uniform(0.5, 15), lambda: self._restart(replica))

    def _restart(self, replica: SimulatedReplica) -> None:
        replica.is_up, replica.is_stalled, replica.incarnation = True, False, replica.incarnation + 1
        self._report(replica)

    def _stall(self) -> None:
        replica = self._victim()
        replica.is_stalled = True
        self._after(self.random.uniform(0.5, 12), lambda: setattr(replica, "is_stalled", False))

    def _fill(self) -> None:
        replica = self._victim()
        replica.is_full = True
        self._after(self.random.uniform(0.5, 8), lambda: setattr(replica, "is_full", False))

    def _break(self) -> None:
        replica = self._victim()
        replica.fails = True
        self._after(self.random.uniform(0.5, 8), lambda: setattr(replica, "fails", False))

    def _drop_from_discovery(self) -> None:
        """Leave one replica out of the list for a while; its open requests go on."""
        gone = self._victim().url
        self.set.update([each for each in self._endpoints() if each.url != gone], self.now)

        def bring_back() -> None:
            self.set.update(self._endpoints(), self.now)
            self._report(self.replicas[gone])

        self._after(self.random.uniform(0.5, 10), bring_back)

    def _jump(self) -> None:
        """Let time pass in which nothing runs: a suspended machine."""
        self.now += self.random.uniform(1, 120)

    def _drain(self, most_seconds: float = 10) -> None:
        replica = self._victim()
        if replica.url not in self.set.endpoints:
            return
        self.set.drain(replica.url, self.now)
        for request, number in self._attempts_on(replica):
            self._handle(request, ev.ReplicaDraining(number))

        def undrain() -> None:
            if replica.url in self.set.endpoints:
                self.set.undrain(replica.url, self.now)

        self._after(self.random.uniform(0.5, most_seconds), undrain)

    def _attempts_on(self, replica: SimulatedReplica) -> list[tuple[SimulatedRequest, int]]:
        return [
            (request, number) for request in self.requests for number in sorted(request.live)
            if request.reservations[number].replica_id == replica.url
        ]  # fmt: skip

    # -- requests --------------------------------------------------------------------------------------------------

    def _arrive(self, number: int) -> None:
        is_invalid = self.random.random() < (0.7 if self.only_client_errors else 0.15)
        fields = GenerationFields(is_streamed=True, is_resumable=True, seed=number)
        deadline = self.now + self.random.uniform(1, 60) if self.random.random() < 0.3 else None
        machine = RequestMachine(fields, LIMITS, self.budget, request_id=f"q{number}", deadline=deadline)
        request = SimulatedRequest(number, self.random.randint(1, 30), is_invalid, machine, self._handle)
        self.requests.append(request)
        self._handle(request, ev.RequestStarted())
        if self.random.random() < 0.1:
            self._after(self.random.uniform(0, 5), lambda: self._handle(request, ev.ClientDisconnected()))

    def _handle(self, request: SimulatedRequest, event: ev.Event) -> None:
        for action in request.machine.handle(event, self.now):
            self._carry_out(request, action)

    def _carry_out(self, request: SimulatedRequest, action: Action) -> None:
        match action:
            case act.PickReplica():
                self._after(0.0, lambda: self._pick(request, action))
            case act.SendAttempt():
                self._send(request, action)
            case act.AbortAttempt(number):
                request.live.discard(number)
            case act.DeliverBytes(_, payload):
                assert not request.finals, "bytes behind the final answer"
                request.received += payload
            case act.SetTimer(kind, number, seconds):
                mark = request.timers[kind, number] = next(self._order)
                self._after(seconds, lambda: self._fire(request, kind, number, mark))
            case act.ClearTimer(kind, number):
                request.timers.pop((kind, number), None)
            case act.RecordOutcome(number, outcome=outcome):
                request.reservations[number].record(HealthOutcome(outcome), self.now)
            case act.ReleaseReplica(number):
                assert not request.reservations[number].is_released
                request.live.discard(number)
                request.reservations[number].release()
            case _:
                assert isinstance(action, FINAL)
                request.finals.append(action)

    def _fire(self, request: SimulatedRequest, kind: TimerKind, number: int, mark: int) -> None:
        if request.timers.get((kind, number)) == mark:
            del request.timers[kind, number]
            self._handle(request, ev.TimerFired(kind, number))

    def _pick(self, request: SimulatedRequest, action: act.PickReplica) -> None:
        statuses = {each.replica_id: each for each in self.set.statuses(self.now)}
        incarnations = {url: each.incarnation for url, each in statuses.items()}
        excluded = {url for url, incarnation in action.excluded if incarnations.get(url) == incarnation}
        if action.replica_id:
            excluded |= statuses.keys() - {action.replica_id}
        candidates = self.set.candidates(MODEL, excluded, self.now, fingerprint=action.fingerprint)
        healthy = {
            each.replica_id for each in candidates if is_healthy(statuses[each.replica_id])
        }  # those that can take the request: a stream is resumed only where the weights are known to be the same
        routing = RoutingRequest(request_id=f"q{request.number}", session_key=str(request.number % 3))
        reservation = self.set.pick(routing, MODEL, self.policy, excluded, self.now, fingerprint=action.fingerprint)
        if reservation is None:
            ready = {(each.replica_id, each.incarnation) for each in statuses.values() if is_healthy(each)}
            self._handle(request, ev.NoReplica(action.attempt, ready=frozenset(ready)))
            return
        assert reservation.replica_id not in excluded
        self.num_moves += action.replica_id != ""
        chosen = statuses[reservation.replica_id]
        if chosen.state is HealthState.EJECTED and not reservation.is_trial:
            assert not healthy, f"an attempt went to an ejected replica while {healthy} are healthy"
        request.reservations[action.attempt] = reservation
        self._handle(request, ev.ReplicaPicked(
            action.attempt, reservation.replica_id, reservation.incarnation, reservation.fingerprint,
            reservation.is_resumable,
        ))  # fmt: skip

    def _send(self, request: SimulatedRequest, action: act.SendAttempt) -> None:
        number, replica = action.attempt, self.replicas[action.replica_id]
        request.live.add(number)
        start = len(action.members.get("resume", [[]])[0])

        def connect() -> None:
            if number not in request.live:
                return
            if not replica.is_up:
                request.live.discard(number)
                self._handle(request, ev.ConnectFailed(number))
                return
            self._handle(request, ev.RequestSent(number))
            wait = self.random.uniform(0.001, 0.1) + self.wait_seconds * self.random.random() ** 0.5 * (start == 0)
            self._after(wait, lambda: self._respond(request, number, replica, start))

        self._after(self.random.uniform(0.001, 0.01), connect)

    def _respond(self, request: SimulatedRequest, number: int, replica: SimulatedReplica, start: int) -> None:
        if number not in request.live:
            return
        if replica.is_stalled:
            self._after(0.5, lambda: self._respond(request, number, replica, start))
            return
        status = 422 if request.is_invalid else 429 if replica.is_full else 500 if replica.fails else 200
        if status != 200:
            request.live.discard(number)
            retry_after = self.random.uniform(0.1, 3) if status == 429 else None
            self._handle(request, ev.ResponseReceived(number, status, retry_after, b"{}"))
            return
        self._handle(request, ev.ResponseReceived(number, 200))
        self._send_token(request, number, replica, start)

    def _send_token(self, request: SimulatedRequest, number: int, replica: SimulatedReplica, position: int) -> None:
        if number not in request.live:
            return
        if replica.is_stalled:
            self._after(0.5, lambda: self._send_token(request, number, replica, position))
            return
        if position >= request.num_tokens:  # all was delivered before: the end chunk comes again
            self._end(request, number, [])
            return
        ids, is_last = (token(request.number, position),), position + 1 == request.num_tokens
        chunk = parse_chunk(chunk_event(
            0, {"content": chr(97 + ids[0])}, ids=ids, position=position, reason="length" if is_last else None
        ))  # fmt: skip
        if is_last:
            self._end(request, number, [ev.ChunksReceived(number, [chunk])])
            return
        self._handle(request, ev.ChunksReceived(number, [chunk]))
        self._after(self.random.uniform(0.01, 0.3), lambda: self._send_token(request, number, replica, position + 1))

    def _end(self, request: SimulatedRequest, number: int, events: list[Any]) -> None:
        if not events:
            chunk = parse_chunk(chunk_event(0, {}, ids=(), position=request.num_tokens, reason="length"))
            events = [ev.ChunksReceived(number, [chunk])]
        for event in (*events, ev.ResponseEnded(number, DONE)):
            self._handle(request, event)
        request.live.discard(number)

    def _break_attempt(self, request: SimulatedRequest, number: int, reason: FailureReason) -> None:
        request.live.discard(number)
        self._handle(request, ev.AttemptBroken(number, reason))
