"""Desk: who the clients of an engine are, and what passes between each of them and the engine.

client A ─┐ their ids                     ids of the desk           Two clients may use equal request ids; inside,
client B ─┴─ receive() ──► Desk ──submit──► engine, in its thread   each request has a number of the desk's own.
          ◄── send() ──── Desk ◄──post──── one list a step and client
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import Any

from chairlift.core.clock import Clock, SystemClock
from chairlift.core.errors import ChairliftError, ConfigError, DuplicateRequestId, EngineDead, InvalidRequest
from chairlift.core.load_report import LoadReport, ReplicaState
from chairlift.core.output_collector import OutputCollector
from chairlift.core.request import EngineOutput, GenerateRequest
from chairlift.engine.client.base import OutputSink
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.ipc.liveness import OperationTimer, SilenceTimer
from chairlift.engine.ipc.messages import (
    ACK_WINDOW,
    PROTOCOL,
    REMOTE_METHODS,
    Abort,
    Ack,
    ClientHeartbeat,
    EngineHeartbeat,
    Goodbye,
    Hello,
    Outputs,
    Ready,
    RemoteCall,
    StartFailed,
    Submit,
    ToClient,
    UnknownClient,
    WatchSteps,
    WireError,
    answer,
    decode_client_message,
    encode,
)
from chairlift.engine.ipc.output_queue import OutputQueue
from chairlift.engine.ipc.step_stats_queue import StepStatsQueue
from chairlift.engine.stats import StepStats

log = logging.getLogger(__name__)

IDLE_SECONDS = 1.0

MAX_BACKLOG = 100_000
"""A client that has so many unread outputs is dropped: it must not grow this process without bound."""

LONGEST_PAUSE_SECONDS = 0.2

Send = Callable[[bytes, bytes], bool]
"""Takes a client's identity and a message; False when the client is gone or does not read. Never waits."""

Post = Callable[[Callable[[], None]], None]
"""Has something done soon in the desk's thread; called from any thread."""


@dataclass(slots=True, eq=False)
class ClientSession:
    """One client, as long as it is known.

    Attributes:
        identity: where its messages go.
        number: counts the clients of this engine.
        interval: seconds between two beats, and between two looks at its backlog.
        patience: seconds of silence that it is granted.
        silence: how long it has said nothing.
        next_beat: when it hears from the engine at the latest.
        sink: takes the news of its requests, one list a step.
        backlog: news that was not sent yet; the engine's thread adds to it, and waits where there is much.
        unread: messages with news that the client has not acknowledged.
        is_posted: whether somebody will look at the backlog: soon, or after the next acknowledgement.
        ids: its open requests: its id -> the desk's.
        quiet_until: when it may get news again.
        steps: while it watches, the steps it was not told yet; they go out with its news, else with a heartbeat.
    """

    identity: bytes
    number: int
    interval: float
    patience: float
    silence: SilenceTimer
    next_beat: float
    sink: OutputSink
    backlog: OutputQueue = field(default_factory=OutputQueue)
    unread: int = 0
    is_flush_scheduled: bool = False
    next_flush_at: float = 0.0
    ids: dict[str, str] = field(default_factory=dict)
    steps: StepStatsQueue | None = None


class EngineServer:
    """Answers clients while the engine starts, works and leaves. Everything but sinks runs in one thread."""

    def __init__(
        self, send: Send, post: Post, config: SchedulerConfig, pid: int, clock: Clock | None = None
    ) -> None:  # fmt: skip
        self._clock = clock or SystemClock()
        self._pause = 0.0
        self._send = send
        self._post = post
        self._config = config
        self._pid = pid
        self._engine: InlineClient | None = None
        self._failure: ChairliftError | None = None
        self._guests: dict[bytes, ClientSession] = {}
        self._owners: dict[str, tuple[ClientSession, str]] = {}
        self._watched_by: tuple[StepStatsQueue, ...] = ()
        self._load = LoadReport(state=ReplicaState.STARTING)
        self._load_asked = False
        self._step_age = OperationTimer(IDLE_SECONDS)
        self._warmup_age = OperationTimer(IDLE_SECONDS)
        self._questions: SimpleQueue[tuple[str, Callable[[Any], None]]] = SimpleQueue()
        self._num_guests = self._num_requests = 0

    # -- the engine's life -----------------------------------------------------------------------------------------

    @property
    def num_guests(self) -> int:
        """How many clients are known."""
        return len(self._guests)

    def engine_started(self, engine: InlineClient, pause: float = 0.0) -> None:
        """The engine has started: everybody is welcome.

        `pause` is how many seconds a client is left alone for each choice that it has got news of; what comes
        meanwhile is sent together. It is for clients who would take the processor from the engine.
        """
        self._engine, self._pause = engine, pause
        self._watch()
        self._load = replace(self._load, state=ReplicaState.READY)
        threading.Thread(target=self._answer, args=(engine,), name="chairlift-answers", daemon=True).start()
        for guest in list(self._guests.values()):
            self._send_message(guest, self._welcome(engine))

    def engine_failed(self, error: ChairliftError) -> None:
        """The engine could not start, and everybody is told why, later ones too."""
        self._failure = error
        for guest in list(self._guests.values()):
            self._send_message(guest, StartFailed(error))

    def shutdown(self, reason: str) -> None:
        """Tell everybody what was kept back, and that the engine is gone."""
        self._pause = 0.0
        for guest in list(self._guests.values()):
            self._flush(guest)
        for guest in list(self._guests.values()):
            self._send_message(guest, Goodbye(reason))

    # -- what clients say ------------------------------------------------------------------------------------------

    def receive(self, identity: bytes, frame: bytes, now: float) -> None:
        """Take one message; what is none is logged and dropped."""
        try:
            message = decode_client_message(frame)
        except WireError as error:
            log.warning("dropped: %s", error)
            return
        guest = self._guests.get(identity)
        if isinstance(message, Hello):
            if guest is not None:
                self._disconnect(guest, "it starts afresh")
            self._on_hello(identity, message, now)
            return
        if guest is None:
            self._send(identity, encode(UnknownClient()))
            return
        guest.silence.heard(now)
        match message:
            case Submit(request):
                self._submit(guest, request)
            case Abort(request_id, index):
                if self._engine is not None and (inner := guest.ids.get(request_id)) is not None:
                    self._engine.abort(inner, index)
            case WatchSteps(wanted):
                if not wanted:
                    guest.steps = None
                elif guest.steps is None:
                    guest.steps = StepStatsQueue()
                self._watch()
            case RemoteCall(number, question):
                self._ask(guest, number, question)
            case Ack(count):
                guest.unread -= min(max(count, 0), guest.unread)
                if guest.is_flush_scheduled:
                    self._flush(guest)
            case Goodbye(reason):
                self._disconnect(guest, reason)
            case ClientHeartbeat():
                pass

    def tick(self, now: float) -> float:
        """Forget who was silent too long, let the others hear from the engine; returns seconds until the next tick."""
        for guest in list(self._guests.values()):
            if (silent := guest.silence.look(now)) > guest.patience:
                self._disconnect(guest, f"silent for {silent:.1f} s, its limit is {guest.patience:g} s")
            elif now >= guest.next_beat and len(guest.backlog) > MAX_BACKLOG:
                self._disconnect(guest, f"more than {MAX_BACKLOG} outputs wait for it")
            elif now >= guest.next_beat:
                guest.next_beat = now + guest.interval
                self._send_message(guest, self._beat(now))
                if guest.steps:
                    guest.is_flush_scheduled = True  # also where it is too early for news
                    self._flush(guest)
                self._ask_load()
            if self._waits_for_quiet(guest) and now >= guest.next_flush_at:
                self._flush(guest)
        return max(0.0, min((self._next(guest) - now for guest in self._guests.values()), default=IDLE_SECONDS))

    def _next(self, guest: ClientSession) -> float:
        return min(guest.next_beat, guest.next_flush_at) if self._waits_for_quiet(guest) else guest.next_beat

    def _waits_for_quiet(self, guest: ClientSession) -> bool:
        return self._pause > 0 and guest.is_flush_scheduled and guest.unread < ACK_WINDOW

    def _on_hello(self, identity: bytes, hello: Hello, now: float) -> None:
        limits = (hello.interval, hello.silence_limit)
        if hello.protocol != PROTOCOL or not all(0 < seconds < float("inf") for seconds in limits):
            said = f"protocol {hello.protocol} with limits of {limits} s, expected {PROTOCOL} and positive ones"
            self._send(identity, encode(StartFailed(ConfigError(f"the client speaks {said}", option="protocol"))))
            return
        number = self._num_guests = self._num_guests + 1
        interval = min(hello.interval, IDLE_SECONDS)
        silence = SilenceTimer(interval, now)
        guest = ClientSession(identity, number, interval, hello.silence_limit, silence, now, lambda outputs: None)
        guest.sink = partial(self._on_outputs, guest)
        self._guests[identity] = guest
        log.info("client %d is here", guest.number)
        if self._failure is not None:
            self._send_message(guest, StartFailed(self._failure))
        elif self._engine is not None:
            self._send_message(guest, self._welcome(self._engine))

    def _submit(self, guest: ClientSession, request: GenerateRequest) -> None:
        if self._engine is None:
            return self._refuse(guest, request, EngineDead("the engine takes no requests yet"))
        if request.request_id in guest.ids:
            return self._refuse(guest, request, DuplicateRequestId(request.request_id))
        self._num_requests += 1
        inner = str(self._num_requests)
        guest.ids[request.request_id] = inner
        self._owners[inner] = (guest, request.request_id)
        try:
            self._engine.submit(replace(request, request_id=inner), guest.sink)
        except ChairliftError as error:
            del self._owners[inner], guest.ids[request.request_id]
            self._refuse(guest, request, error)
        return None

    def _refuse(self, guest: ClientSession, request: GenerateRequest, error: ChairliftError) -> None:
        self._send_message(guest, Outputs([EngineOutput.failed(request, error)]))

    # -- what the engine says --------------------------------------------------------------------------------------

    def _on_outputs(self, guest: ClientSession, outputs: list[EngineOutput]) -> None:
        """Take one step's news, in the engine's thread; the flag is read after the news lies there."""
        guest.backlog.put(outputs)
        if not guest.is_flush_scheduled:
            guest.is_flush_scheduled = True
            self._post(partial(self._flush, guest))
        if self._engine is not None and self._engine.fatal_error is None:  # who ends waits for nobody
            guest.backlog.throttle(len(outputs))

    def _flush(self, guest: ClientSession) -> None:
        """Send the news that lies there in one message, unless the client still has enough to read."""
        if not self._is_here(guest):
            self._forget(guest)
            return
        if guest.unread >= ACK_WINDOW or (self._pause and self._clock.now() < guest.next_flush_at):
            return
        guest.is_flush_scheduled = False
        news = OutputCollector()
        for output in guest.backlog.take():
            news.put(output)
        outputs = [self._with_client_id(guest, output) for output in news.drain()]
        stats, unseen = ([], 0) if guest.steps is None else guest.steps.take()  # after the news: never behind them
        if outputs or stats:
            guest.unread += 1
            self._send_message(guest, Outputs(outputs, stats, unseen))
            if self._pause:
                guest.next_flush_at = self._clock.now() + min(len(outputs) * self._pause, LONGEST_PAUSE_SECONDS)

    def _forget(self, guest: ClientSession) -> None:
        """Let go what a client was not told that is gone, and which of its requests have ended."""
        guest.is_flush_scheduled = False
        for output in guest.backlog.take():
            if output.is_final:
                self._with_client_id(guest, output)

    def _watch(self) -> None:
        """Have the engine show its steps to those who want them, and to nobody at no cost."""
        self._watched_by = tuple(guest.steps for guest in self._guests.values() if guest.steps is not None)
        if self._engine is not None:
            self._engine.watch_steps(self._stepped if self._watched_by else None)

    def _stepped(self, stats: StepStats) -> None:
        """Take one step in numbers, in the engine's thread; it wakes nobody."""
        for steps in self._watched_by:
            steps.add(stats)

    def _with_client_id(self, guest: ClientSession, output: EngineOutput) -> EngineOutput:
        """Put the client's own id into an output, and forget the request after its last one."""
        name = self._owners[output.request_id][1]
        if output.is_final:
            del self._owners[output.request_id], guest.ids[name]
        return EngineOutput(name, *output[1:])

    def _welcome(self, engine: InlineClient) -> Ready:
        return Ready(self._pid, engine.info, self._config)

    def _beat(self, now: float) -> EngineHeartbeat:
        if (engine := self._engine) is None:
            return EngineHeartbeat(self._load)
        load = replace(self._load, step_age_seconds=self._step_age.look(engine.step_began, now))
        return EngineHeartbeat(load, self._warmup_age.look(engine.warmup_began, now))

    def _ask_load(self) -> None:
        """Have the counts for the next heartbeat by then, unless a long step goes on."""
        if self._engine is not None and not self._load_asked:
            self._load_asked = True
            self._questions.put(("load", self._loaded))

    def _loaded(self, report: Any) -> None:
        self._load_asked = False
        if isinstance(report, LoadReport):
            self._load = report

    # -- questions: the engine answers between two steps, and the desk does not wait for it ------------------------

    def _ask(self, guest: ClientSession, number: int, question: str) -> None:
        if question not in REMOTE_METHODS or self._engine is None:
            self._send_message(
                guest, answer(number, InvalidRequest(f"{question!r} cannot be asked now", param="question"))
            )
            return
        names = dict(self._owners) if question == "scheduler_state" else {}
        self._questions.put((question, lambda value: self._answered(guest, number, value, names)))

    def _answer(self, engine: InlineClient) -> None:
        """Run in a thread of its own: wait for the answers, one after another."""
        while True:
            question, answered = self._questions.get()
            try:
                value = getattr(engine, question)()
            except Exception as error:
                value = error
            self._post(partial(answered, value))

    def _answered(
        self, guest: ClientSession, number: int, value: Any, names: dict[str, tuple[ClientSession, str]]
    ) -> None:
        if names and isinstance(value, dict):
            names = names | self._owners
            value = _with_names(value, {inner: _shown(guest, *owner) for inner, owner in names.items()})
        self._send_message(guest, answer(number, value))

    # -- lists -----------------------------------------------------------------------------------------------------

    def _send_message(self, guest: ClientSession, message: ToClient) -> None:
        if self._is_here(guest) and not self._send(guest.identity, encode(message)):
            self._disconnect(guest, "gone, or does not read")

    def _is_here(self, guest: ClientSession) -> bool:
        return self._guests.get(guest.identity) is guest

    def _disconnect(self, guest: ClientSession, why: str) -> None:
        """Forget a client and end its requests."""
        log.info("client %d disconnected with %d open requests: %s", guest.number, len(guest.ids), why)
        del self._guests[guest.identity]
        if guest.steps is not None:
            self._watch()
        if self._engine is not None:
            for inner in guest.ids.values():
                self._engine.abort(inner)
        self._post(partial(self._flush, guest))  # what it was not told is forgotten with it


def _shown(reader: ClientSession, owner: ClientSession, request_id: str) -> str:
    """A client's own ids as it wrote them, those of others behind their client's number."""
    return request_id if owner is reader else f"client {owner.number}: {request_id}"


def _with_names(state: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Put other request ids into a SchedulerState."""
    renamed = {
        key: {names.get(inner, inner): value for inner, value in state[key].items()}
        for key in ("wait_reasons", "states")
    }
    return state | renamed | {"waiting_order": [names.get(inner, inner) for inner in state["waiting_order"]]}
