"""World: a RequestMachine with the replicas, the client and the timers around it; checks what must always hold."""

import pickle
from dataclasses import dataclass, field
from typing import Any

import orjson

from chairlift.router.attempts import actions as act
from chairlift.router.attempts import events as ev
from chairlift.router.attempts.actions import Action, ResponseMode
from chairlift.router.attempts.attempt import AttemptLimits
from chairlift.router.attempts.chunks import Chunk, ChunkKind, parse_chunk
from chairlift.router.attempts.events import FailureReason, TimerKind
from chairlift.router.attempts.generation_fields import GenerationFields
from chairlift.router.attempts.hedging import HedgeConfig, HedgeController
from chairlift.router.attempts.request_machine import RequestMachine
from chairlift.router.attempts.retry_budget import RetryBudget, RetryBudgetConfig
from chairlift.router.health.breaker import HealthOutcome

DONE = b"data: [DONE]\n\n"
SEED = 7
STREAM = GenerationFields(is_streamed=True, is_resumable=True, seed=SEED)
WHOLE = GenerationFields(is_resumable=True, seed=SEED)
LIMITS = AttemptLimits(
    connect_timeout_seconds=2, first_token_timeout_seconds=20, inter_token_timeout_seconds=5, resume_wait_seconds=10
)


def chunk_event(
    index: int = 0, delta: dict[str, Any] | None = None, *, ids: tuple[int, ...] | None = None, position: int = 0,
    reason: str | None = None, created: int = 1, logprobs: Any = None, with_usage: bool = False, usage: Any = None,
    stop_reason: str | int | None = None,
) -> bytes:  # fmt: skip
    """Return a chunk of a chat stream as the server writes it; without `ids` it has no token ids."""
    choice: dict[str, Any] = {
        "index": index, "delta": delta or {}, "logprobs": logprobs, "finish_reason": reason
    }  # fmt: skip
    if stop_reason is not None:
        choice["stop_reason"] = stop_reason
    if ids is not None:
        choice |= {"token_ids": ids, "position": position}
    body: dict[str, Any] = {
        "id": "chatcmpl-r1", "object": "chat.completion.chunk", "created": created, "model": 'm"o,"choices":[',
        "system_fingerprint": f"chairlift-{created}", "choices": [choice],
    }  # fmt: skip
    return b"data: " + orjson.dumps(body | ({"usage": usage} if with_usage else {})) + b"\n\n"


def chunk(*args: Any, **fields: Any) -> Chunk:
    """Return a parsed chunk_event."""
    return parse_chunk(chunk_event(*args, **fields))


@dataclass(slots=True)
class Replica:
    """A replica that a policy may pick."""

    replica_id: str
    fingerprint: str = "w1"
    is_resumable: bool = True
    incarnation: str = "1"


REPLICAS = (Replica("a"), Replica("b"), Replica("c", "w2"), Replica("f", "", is_resumable=False))
NUM_TOKENS = 3
TEXTS = "xyz"
BODY = b'{"choices":[{"index":0,"message":{"content":"xyz"},"logprobs":null}]}'


@dataclass(slots=True)
class Connection:
    """The request at one replica."""

    replica: Replica
    mode: ResponseMode
    next_token: int
    is_sent: bool = False
    has_role: bool = False
    is_over: bool = False


@dataclass
class World:
    """One request; `apply` lets something happen, `choices` lists what can."""

    machine: RequestMachine
    budget: RetryBudget
    fields: GenerationFields
    replicas: tuple[Replica, ...] = REPLICAS
    picking: dict[int, act.PickReplica] = field(default_factory=dict)
    picked: dict[int, Replica] = field(default_factory=dict)
    released: set[int] = field(default_factory=set)
    connections: dict[int, Connection] = field(default_factory=dict)
    stale: dict[int, Connection] = field(default_factory=dict)
    timers: set[tuple[TimerKind, int]] = field(default_factory=set)
    outcomes: dict[int, HealthOutcome] = field(default_factory=dict)
    expected: dict[int, set[HealthOutcome]] = field(default_factory=dict)
    sent: bytes = b""
    final: act.FinalAction | None = None
    now: float = 0.0
    num_handed_over: int = 0

    def copy(self) -> "World":
        """Return an independent world in the same state."""
        return pickle.loads(self.key())  # type: ignore[no-any-return]

    def key(self) -> bytes:
        """Return the state as bytes; equal bytes are equal states."""
        return pickle.dumps(self)

    def step(self, event: ev.Event) -> list[Action]:
        """Report an event and carry out the actions; check each of them."""
        actions = self.machine.handle(event, self.now)
        was_final = self.final is not None
        for action in actions:
            assert not was_final or isinstance(action, act.ReleaseReplica), f"{action} after the final answer"
            self._carry_out(action)
        self._check()
        return actions

    def _carry_out(self, action: Action) -> None:
        match action:
            case act.PickReplica(number):
                assert number not in self.picked and number not in self.picking
                self.picking[number] = action
            case act.SendAttempt(number):
                self._send(action)
            case act.AbortAttempt(number):
                assert (number in self.picking) != (number in self.connections), f"{number} is not open"
                self.picking.pop(number, None)
                self._close(number)
            case act.DeliverBytes(number, payload):
                assert self.final is None and payload and number in self.picked
                self.sent += payload
            case act.SetTimer(kind, number, seconds):
                assert seconds >= 0
                self.timers.add((kind, number))
            case act.ClearTimer(kind, number):
                assert (kind, number) in self.timers, f"{kind} of {number} does not run"
                self.timers.discard((kind, number))
            case act.RecordOutcome(number, replica_id, _, outcome):
                assert number not in self.outcomes and self.picked[number].replica_id == replica_id
                self.outcomes[number] = outcome
                allowed = self.expected.get(number, {HealthOutcome.NEUTRAL})
                assert outcome in allowed, f"{outcome} for {number}, not {allowed}"
            case act.ReleaseReplica(number, replica_id):
                assert number not in self.released and self.picked[number].replica_id == replica_id
                self.released.add(number)
                self._close(number)
            case _:
                assert self.final is None, "a second final answer"
                self.final = action

    def _send(self, action: act.SendAttempt) -> None:
        replica = self.picked[action.attempt]
        assert action.attempt not in self.released and action.replica_id == replica.replica_id
        resume = action.members.get("resume", [[]])
        if replica.is_resumable and self.fields.is_resumable:
            assert action.members["seed"] == SEED
            assert ("return_token_ids" in action.members) == self.fields.is_streamed
        else:
            assert action.members == {}
        if self.sent:
            assert resume == [[10 + i for i in range(self._num_delivered())]], "resumes behind what was delivered"
        self.connections[action.attempt] = Connection(replica, action.mode, len(resume[0]))

    def _num_delivered(self) -> int:
        return sum(self.sent.count(b'"content":"%c"' % ord(text)) for text in TEXTS)

    def _close(self, number: int) -> None:
        if number in self.connections:
            self.stale[number] = self.connections.pop(number)

    def _check(self) -> None:
        lines = self.expected_stream()
        if self.fields.is_streamed:
            assert b"".join(lines).startswith(self.sent.partition(b"event: error")[0]), self.sent
        if self.final is None:
            working = self.picking or self.connections or (TimerKind.RETRY, 0) in self.timers
            assert working, "nothing goes on and there is no final answer"
            return
        assert not self.timers and not self.connections and not self.picking
        assert self.released == set(self.picked), "every picked replica is released"
        assert not self.budget.active_requests and not self.budget.active_retries
        if isinstance(self.final, act.CompleteResponse):
            assert self.sent == (b"".join(lines) if self.fields.is_streamed else BODY)
        elif not isinstance(self.final, act.EndWithError | act.CancelRequest):
            assert not self.sent, "a status after a part of the response"
        else:
            assert b"[DONE]" not in self.sent

    def expected_stream(self) -> list[bytes]:
        """Return the events of an uncut stream; the time is that of the attempt which began it."""
        created = int(self.sent.partition(b'"created":')[2].partition(b",")[0] or 0)
        lines = [chunk_event(0, {"role": "assistant", "content": ""}, created=created)]
        for i, text in enumerate(TEXTS):
            reason = "stop" if i == NUM_TOKENS - 1 else None
            lines.append(chunk_event(0, {"content": text}, reason=reason, created=created))
        return [*lines, DONE]

    def next_events(self, number: int, connection: Connection) -> list[ev.AttemptEvent]:
        """Return what the replica sends next: a role, a token, or the end."""
        i, is_opaque = connection.next_token, connection.mode is ResponseMode.OPAQUE
        if connection.mode is ResponseMode.WHOLE:
            return [ev.ResponseEnded(number, BODY)]
        if i == NUM_TOKENS:
            payload = {ResponseMode.TOKENS: DONE, ResponseMode.PROGRESS: BODY}.get(connection.mode, b"")
            end: list[ev.AttemptEvent] = [ev.ChunksReceived(number, (Chunk(DONE),))] if is_opaque else []
            return [*end, ev.ResponseEnded(number, payload)]
        if connection.mode is ResponseMode.PROGRESS:
            return [ev.ChunksReceived(number, (Chunk(b"", ChunkKind.CHOICE, 0, (10 + i,)),))]
        if i == 0 and not connection.has_role:
            event = chunk_event(0, {"role": "assistant", "content": ""}, created=number)
        else:
            reason = "stop" if i == NUM_TOKENS - 1 else None
            ids = None if is_opaque else (10 + i,)
            event = chunk_event(0, {"content": TEXTS[i]}, ids=ids, position=i, reason=reason, created=number)
        return [ev.ChunksReceived(number, (Chunk(event) if is_opaque else parse_chunk(event),))]

    def choices(self) -> list[tuple[Any, ...]]:
        """Return what can happen now."""
        found: list[tuple[Any, ...]] = [("gone",)]
        for number, pick in self.picking.items():
            found += [("picked", number, i) for i, each in enumerate(self.replicas) if self.may_pick(pick, each)]
            found += [("none", number, None), ("none", number, 1.0)]
        for number, connection in self.connections.items():
            if connection.is_over:
                continue
            found += [(name, number) for name in ("next", "reset", "draining")]
            if connection.is_sent:
                found += [(name, number) for name in ("full", "error", "reported", "broken")]
                if connection.next_token == 0 and not connection.has_role:
                    found += [("status", number, status) for status in (429, 500, 400)]
                    found.append(("available", number))
            else:
                found += [("refused", number), ("sent", number)]
        found += [("timer", kind, number) for kind, number in sorted(self.timers)]
        if self.stale:
            found.append(("stale", max(self.stale)))
        return found

    @staticmethod
    def may_pick(pick: act.PickReplica, replica: Replica) -> bool:
        """Return whether a policy may answer with this replica."""
        fits = not pick.fingerprint or (replica.is_resumable and replica.fingerprint == pick.fingerprint)
        fits = fits and pick.replica_id in ("", replica.replica_id)
        return fits and (replica.replica_id, replica.incarnation) not in pick.excluded

    def apply(self, choice: tuple[Any, ...]) -> None:
        """Let one of `choices` happen."""
        match choice:
            case ("gone",):
                self.step(ev.ClientDisconnected())
            case ("picked", number, index):
                self.pick(number, self.replicas[index])
            case ("none", number, retry_after):
                del self.picking[number]
                self.step(ev.NoReplica(number, retry_after))
            case ("timer", kind, number):
                self.fire(kind, number)
            case ("stale", number):
                before = self.sent
                for event in self.next_events(number, self.stale[number]):
                    assert self.step(event) == [], "an attempt that has ended has no effect"
                assert self.sent == before
            case (name, number, *rest):
                self._at_replica(name, number, *rest)

    def pick(self, number: int, replica: Replica) -> list[Action]:
        """Answer a pick."""
        del self.picking[number]
        self.picked[number] = replica
        event = ev.ReplicaPicked(
            number, replica.replica_id, replica.incarnation, replica.fingerprint, replica.is_resumable
        )
        return self.step(event)

    def fire(self, kind: TimerKind, number: int) -> list[Action]:
        """Let a timer's time pass."""
        self.timers.remove((kind, number))
        is_late = kind is not TimerKind.FIRST_TOKEN or self.connections[number].mode is not ResponseMode.WHOLE
        if is_late and kind in (TimerKind.CONNECT, TimerKind.FIRST_TOKEN, TimerKind.INTER_TOKEN):
            self._expect(number, HealthOutcome.FAULT)
        before, self.now = self.now, self.now + (1000 if kind is TimerKind.INTER_TOKEN else 0)
        actions = self.step(ev.TimerFired(kind, number))
        self.now = before
        return actions

    def _at_replica(self, name: str, number: int, status: int = 0) -> None:
        connection = self.connections[number]
        connection.is_sent = connection.is_sent or name not in ("refused", "draining", "available")
        match name:
            case "next":
                self._receive_next(number, connection)
            case "sent":
                self.step(ev.RequestSent(number))
            case "draining":
                self.step(ev.ReplicaDraining(number))
            case "available":
                other = self.replicas[connection.replica is self.replicas[0]]
                self.step(ev.ReplicaAvailable(number, other.replica_id))
            case "refused":
                self._ends(number, HealthOutcome.FAULT, ev.ConnectFailed(number))
            case "reset":
                self._ends(number, HealthOutcome.FAULT, ev.AttemptBroken(number, FailureReason.RESET))
            case "broken":
                self._ends(number, HealthOutcome.FAULT, ev.AttemptBroken(number, FailureReason.BAD_STREAM))
            case "full":
                broken = ev.AttemptBroken(number, FailureReason.UNAVAILABLE)
                self._ends(number, HealthOutcome.NEUTRAL, broken)
            case "error":
                self._ends(number, HealthOutcome.FAULT, ev.AttemptBroken(number, FailureReason.EOF))
            case "reported":
                self._ends(number, HealthOutcome.NEUTRAL, ev.RequestErrorReported(number, b'{"error":{"code":"x"}}'))
            case "status":
                outcome = HealthOutcome.FAULT if status == 500 else HealthOutcome.NEUTRAL
                self._ends(number, outcome, ev.ResponseReceived(number, status, 1.0, b"no"))

    def _receive_next(self, number: int, connection: Connection) -> None:
        events = self.next_events(number, connection)
        if isinstance(events[-1], ev.ResponseEnded):
            connection.is_over = True
            self._expect(number, HealthOutcome.SUCCESS)
        elif connection.next_token == 0 and connection.mode is not ResponseMode.PROGRESS and not connection.has_role:
            connection.has_role = True
        else:
            connection.next_token += 1
        for event in events:
            self.step(event)

    def _ends(self, number: int, outcome: HealthOutcome, event: ev.Event) -> None:
        self.connections[number].is_over = True
        self._expect(number, outcome)
        self.step(event)

    def _expect(self, number: int, outcome: HealthOutcome) -> None:
        """Expect an outcome; an attempt that is given away may also end without one."""
        attempt = self.machine._open.get(number)
        is_frozen = attempt is not None and attempt.frozen is not None
        self.expected[number] = {outcome, HealthOutcome.NEUTRAL} if is_frozen else {outcome}


def make_world(
    fields: GenerationFields = STREAM, *, hedges: bool = False, deadline: float | None = None,
    limits: AttemptLimits = LIMITS, budget: RetryBudgetConfig | None = None, replicas: tuple[Replica, ...] = REPLICAS,
) -> World:  # fmt: skip
    """Return a world whose request has started; with `hedges` a first token that is late is hedged."""
    hedging = None
    if hedges:
        hedging = HedgeController(HedgeConfig(max_share=1.0, min_samples=1))
        hedging.record_first_token(0.1)
    own = RetryBudget(budget)
    machine = RequestMachine(fields, limits, own, hedging, request_id="r1", deadline=deadline)
    world = World(machine, own, fields, replicas)
    world.step(ev.RequestStarted())
    return world
