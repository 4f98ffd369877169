"""EngineServer: keeps a session for each client and passes requests and outputs between clients and engine.

client A ─┐ client ids                    engine ids                Two clients may use equal request ids: the engine
client B ─┴─ receive() ──► EngineServer ──submit──► engine thread   sees an id that the server makes for each request.
          ◄── send() ──── EngineServer ◄──post──── one list for each step and client
"""

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

from chairlift.core.adapter_version import missing_adapter
from chairlift.core.clock import Clock, SystemClock
from chairlift.core.engine_output import EngineOutput
from chairlift.core.errors import ChairliftError, ConfigError, DuplicateRequestId, EngineDead, InvalidRequest
from chairlift.core.load_report import LoadReport, ReplicaState
from chairlift.core.output_collector import OutputCollector
from chairlift.core.request import GenerateRequest
from chairlift.engine.batch_snapshot import BatchSnapshot
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.ipc.client_session import ClientSession
from chairlift.engine.ipc.liveness_limits import OperationTimer, SilenceTimer
from chairlift.engine.ipc.messages import (
    ACK_WINDOW,
    PROTOCOL,
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
    decode_client_message,
    encode,
    encode_reply,
    read_arguments,
)
from chairlift.engine.ipc.snapshot_request_ids import display_id, with_ids, with_row_ids
from chairlift.engine.ipc.step_stats_queue import StepStatsQueue
from chairlift.engine.step_stats import StepStats

log = logging.getLogger(__name__)

IDLE_SECONDS = 1.0

MAX_BACKLOG = 100_000
"""Unread outputs at which a client is dropped: the memory of this process must stay bounded."""

MAX_PAUSE_SECONDS = 0.2  # of a client without outputs

Send = Callable[[bytes, bytes], bool]
"""Sends a message to a client by its identity; False when it has disconnected or does not read. Never waits."""

Post = Callable[[Callable[[], None]], None]
"""Schedules a call in the engine server's thread; may be called from any thread."""


class _Call(NamedTuple):
    """A remote call: a method of the engine, its arguments, and what takes its result or its error."""

    method: str
    arguments: tuple[int | str, ...]
    complete: Callable[[Any], None]


def _ignore(value: Any) -> None:
    """Take the result of a call that no client waits for."""


class EngineServer:
    """Serves clients while the engine starts, runs and stops, in one thread except for the sinks."""

    def __init__(
        self, send: Send, post: Post, config: SchedulerConfig, pid: int, clock: Clock | None = None,
        delay: Callable[[], float] = lambda: 0.0,
    ) -> None:  # fmt: skip
        """Create the server; `delay` returns the seconds that other programs have delayed this process so far."""
        self._clock = clock or SystemClock()
        self._output_interval = 0.0
        self._send = send
        self._post = post
        self._config = config
        self._pid = pid
        self._engine: InlineClient | None = None
        self._failure: ChairliftError | None = None
        self._sessions: dict[bytes, ClientSession] = {}
        self._owners: dict[str, tuple[ClientSession, str]] = {}
        self._step_queues: tuple[StepStatsQueue, ...] = ()
        self._load = LoadReport(state=ReplicaState.STARTING)
        self._is_load_pending = False
        self._step_age = OperationTimer(IDLE_SECONDS, delay)
        self._warmup_age = OperationTimer(IDLE_SECONDS, delay)
        self._calls: SimpleQueue[_Call] = SimpleQueue()
        self._adapter_loads: SimpleQueue[_Call] = SimpleQueue()  # they take long, so they hold up no other call
        self._last_adapter = 0
        self._last_number = self._num_requests = 0

    # -- engine lifecycle ------------------------------------------------------------------------------------------

    @property
    def num_clients(self) -> int:
        """Number of connected clients."""
        return len(self._sessions)

    def engine_started(self, engine: InlineClient, output_interval: float = 0.0) -> None:
        """Accept requests and send Ready to all clients, now that the engine has started.

        After each message a client gets no outputs for `output_interval` seconds a choice in it; later outputs are sent
        together. This spares the engine's CPUs; AsyncLLM's stream_interval spares the client's event loop in a flood.
        """
        self._engine, self._output_interval = engine, output_interval
        self._update_watchers()
        self._load = replace(self._load, state=ReplicaState.READY)
        for calls, name in ((self._calls, "chairlift-calls"), (self._adapter_loads, "chairlift-adapter-loads")):
            threading.Thread(target=self._run_calls, args=(engine, calls), name=name, daemon=True).start()
        for session in list(self._sessions.values()):
            self._send_message(session, self._ready_message(engine))

    def engine_failed(self, error: ChairliftError) -> None:
        """Send the start error to all clients, also to those that connect later."""
        self._failure = error
        for session in list(self._sessions.values()):
            self._send_message(session, StartFailed(error))

    def shutdown(self, reason: str) -> None:
        """Send the queued outputs to all clients, then Goodbye."""
        self._output_interval = 0.0
        for session in list(self._sessions.values()):
            self._flush(session)
        for session in list(self._sessions.values()):
            self._send_message(session, Goodbye(reason))

    # -- messages from clients -------------------------------------------------------------------------------------

    def receive(self, identity: bytes, frame: bytes, now: float) -> None:
        """Handle one message; log and drop a frame that is none."""
        try:
            message = decode_client_message(frame)
        except WireError as error:
            log.warning("dropped: %s", error)
            return
        session = self._sessions.get(identity)
        if isinstance(message, Hello):
            if session is not None:
                # The client has forgotten its requests, so those of its old session are aborted.
                self._disconnect(session, "it connects again")
            self._on_hello(identity, message, now)
            return
        if session is None:
            self._send(identity, encode(UnknownClient()))
            return
        session.silence.reset(now)
        match message:
            case Submit(request):
                self._submit(session, request)
            case Abort(request_id, index):
                if self._engine is not None and (engine_id := session.engine_ids.get(request_id)) is not None:
                    self._engine.abort(engine_id, index)
            case WatchSteps(is_enabled):
                if not is_enabled:
                    session.steps = None
                elif session.steps is None:
                    session.steps = StepStatsQueue()
                self._update_watchers()
            case RemoteCall():
                self._start_call(session, message)
            case Ack(count):
                # A client's count is not trusted: it must not make room for more than was sent.
                session.num_unread -= min(max(count, 0), session.num_unread)
                if session.is_flush_scheduled:
                    self._flush(session)
            case Goodbye(reason):
                self._disconnect(session, reason)
            case ClientHeartbeat():
                pass

    def tick(self, now: float) -> float:
        """Disconnect silent clients, send due heartbeats and outputs; returns seconds until the next tick."""
        for session in list(self._sessions.values()):
            if (silent := session.silence.elapsed(now)) > session.silence_limit:
                self._disconnect(session, f"silent for {silent:.1f} s, the limit is {session.silence_limit:g} s")
            elif now >= session.heartbeat_at and len(session.output_queue) > MAX_BACKLOG:
                self._disconnect(session, f"more than {MAX_BACKLOG} unread outputs")
            elif now >= session.heartbeat_at:
                session.heartbeat_at = now + session.interval
                self._send_message(session, self._heartbeat(now))
                if session.steps:
                    session.is_flush_scheduled = True  # also where it is too early for outputs
                    self._flush(session)
                self._request_load()
            if self._is_delayed(session) and now >= session.next_flush_at:
                self._flush(session)
        return max(0.0, min((self._next_tick(each) - now for each in self._sessions.values()), default=IDLE_SECONDS))

    def _next_tick(self, session: ClientSession) -> float:
        return min(session.heartbeat_at, session.next_flush_at) if self._is_delayed(session) else session.heartbeat_at

    def _is_delayed(self, session: ClientSession) -> bool:
        return self._output_interval > 0 and session.is_flush_scheduled and session.num_unread < ACK_WINDOW

    def _on_hello(self, identity: bytes, hello: Hello, now: float) -> None:
        limits = (hello.interval, hello.silence_limit)
        if hello.protocol != PROTOCOL or not all(0 < seconds < float("inf") for seconds in limits):
            problem = f"protocol {hello.protocol} and limits of {limits} s, expected {PROTOCOL} and positive limits"
            self._send(identity, encode(StartFailed(ConfigError(f"the client uses {problem}", option="protocol"))))
            return
        number = self._last_number = self._last_number + 1
        interval = min(hello.interval, IDLE_SECONDS)
        silence = SilenceTimer(interval, now)
        session = ClientSession(identity, number, interval, hello.silence_limit, silence, now, lambda outputs: None)
        session.sink = partial(self._on_outputs, session)
        self._sessions[identity] = session
        log.info("client %d connected", session.number)
        if self._failure is not None:
            self._send_message(session, StartFailed(self._failure))
        elif self._engine is not None:
            self._send_message(session, self._ready_message(self._engine))

    def _submit(self, session: ClientSession, request: GenerateRequest) -> None:
        if self._engine is None:
            return self._reject(session, request, EngineDead("the engine accepts no requests yet"))
        if request.request_id in session.engine_ids:
            return self._reject(session, request, DuplicateRequestId(request.request_id))
        if (adapter := request.adapter).number:
            if adapter.number not in session.adapters:
                return self._reject(session, request, missing_adapter())
            adapter = replace(adapter, number=session.adapters[adapter.number])
        self._num_requests += 1
        engine_id = str(self._num_requests)
        session.engine_ids[request.request_id] = engine_id
        self._owners[engine_id] = (session, request.request_id)
        try:
            self._engine.submit(replace(request, request_id=engine_id, adapter=adapter), session.sink)
        except ChairliftError as error:
            del self._owners[engine_id], session.engine_ids[request.request_id]
            self._reject(session, request, error)
        return None

    def _reject(self, session: ClientSession, request: GenerateRequest, error: ChairliftError) -> None:
        self._send_message(session, Outputs([EngineOutput.failed(request, error)]))

    # -- outputs of the engine -------------------------------------------------------------------------------------

    def _on_outputs(self, session: ClientSession, outputs: list[EngineOutput]) -> None:
        """Queue the outputs of one step, in the engine thread; the flag is read after they are queued."""
        session.output_queue.put(outputs)
        if not session.is_flush_scheduled:
            session.is_flush_scheduled = True
            self._post(partial(self._flush, session))
        if self._engine is not None and self._engine.fatal_error is None:  # an engine that stops must not wait
            session.output_queue.throttle(len(outputs))

    def _flush(self, session: ClientSession) -> None:
        """Send the queued outputs in one message, unless the client has not read the earlier ones."""
        if not self._is_connected(session):
            self._forget(session)
            return
        if session.num_unread >= ACK_WINDOW or (self._output_interval and self._clock.now() < session.next_flush_at):
            return
        session.is_flush_scheduled = False
        collector = OutputCollector()
        for output in session.output_queue.take():
            collector.put(output)
        outputs = [self._with_client_id(session, output) for output in collector.drain()]
        stats, dropped = ([], 0) if session.steps is None else session.steps.take()  # after the outputs: not late
        if outputs or stats:
            session.num_unread += 1
            self._send_message(session, Outputs(outputs, stats, dropped))
            if self._output_interval:
                session.next_flush_at = self._clock.now() + min(len(outputs) * self._output_interval, MAX_PAUSE_SECONDS)

    def _forget(self, session: ClientSession) -> None:
        """Drop the outputs of a disconnected client, and the ids of its requests that have ended."""
        session.is_flush_scheduled = False
        for output in session.output_queue.take():
            if output.is_final:
                self._with_client_id(session, output)

    def _update_watchers(self) -> None:
        """Pass step stats to the clients that watch; without one the engine makes none."""
        self._step_queues = tuple(session.steps for session in self._sessions.values() if session.steps is not None)
        if self._engine is not None:
            self._engine.watch_steps(self._on_step if self._step_queues else None)

    def _on_step(self, stats: StepStats) -> None:
        """Queue the stats of one step, in the engine thread; this wakes no thread."""
        for steps in self._step_queues:
            steps.add(stats)

    def _with_client_id(self, session: ClientSession, output: EngineOutput) -> EngineOutput:
        """Put the client's own id into an output; forget the request after its final output."""
        client_id = self._owners[output.request_id][1]
        if output.is_final:
            del self._owners[output.request_id], session.engine_ids[client_id]
        return EngineOutput(client_id, *output[1:])

    def _ready_message(self, engine: InlineClient) -> Ready:
        return Ready(self._pid, engine.info, self._config)

    def _heartbeat(self, now: float) -> EngineHeartbeat:
        if (engine := self._engine) is None:
            return EngineHeartbeat(self._load)
        load = replace(self._load, step_age_seconds=self._step_age.elapsed(engine.step_started_at, now))
        return EngineHeartbeat(load, self._warmup_age.elapsed(engine.warmup_started_at, now))

    def _request_load(self) -> None:
        """Start a load call whose counts go into the next heartbeat, unless a long step is running."""
        if self._engine is not None and not self._is_load_pending:
            self._is_load_pending = True
            self._calls.put(_Call("load", (), self._on_load))

    def _on_load(self, report: Any) -> None:
        self._is_load_pending = False
        if isinstance(report, LoadReport):
            self._load = report

    # -- remote calls: they run between two steps, and the engine server does not wait for them --------------------

    def _start_call(self, session: ClientSession, call: RemoteCall) -> None:
        try:
            arguments = read_arguments(call)
            if self._engine is None:
                raise InvalidRequest(f"{call.method!r} cannot be called now", param="method")
        except InvalidRequest as error:
            self._send_message(session, encode_reply(call.number, error))
            return
        if call.method == "load_adapter":
            self._start_load(session, call.number, arguments)
            return
        if call.method == "drop_adapter":
            arguments = (session.adapters.pop(int(arguments[0]), 0),)
        client_ids = dict(self._owners) if call.method == "scheduler_state" else {}
        self._calls.put(
            _Call(call.method, arguments, lambda value: self._on_result(session, call.number, value, client_ids))
        )

    def _start_load(self, session: ClientSession, number: int, arguments: tuple[int | str, ...]) -> None:
        """Start to load an adapter under a number of the engine's own: two clients may use equal numbers."""
        client_number, folder = int(arguments[0]), arguments[1]
        if client_number < 1 or client_number in session.adapters:
            error = InvalidRequest(f"the adapter number {client_number} is in use or no number", param="number")
            self._send_message(session, encode_reply(number, error))
            return
        self._last_adapter += 1
        self._adapter_loads.put(_Call(
            "load_adapter", (self._last_adapter, folder),
            partial(self._on_adapter, session, number, client_number, self._last_adapter),
        ))  # fmt: skip

    def _on_adapter(
        self, session: ClientSession, number: int, client_number: int, engine_number: int, value: Any
    ) -> None:
        """Keep the number of an adapter that was loaded, unless its client has disconnected meanwhile."""
        if not isinstance(value, Exception):
            if client_number in session.adapters:
                value = InvalidRequest(f"the adapter number {client_number} is in use", param="number")
            if isinstance(value, Exception) or not self._is_connected(session):
                self._drop_adapters([engine_number])
            else:
                session.adapters[client_number] = engine_number
        self._send_message(session, encode_reply(number, value))

    def _drop_adapters(self, numbers: Iterable[int]) -> None:
        """Drop adapters whose client has disconnected; its requests were aborted before."""
        for number in numbers:
            self._calls.put(_Call("drop_adapter", (number,), _ignore))

    def _run_calls(self, engine: InlineClient, calls: "SimpleQueue[_Call]") -> None:
        """Run remote calls one after another, in a thread of their own."""
        while True:
            call = calls.get()
            try:
                value = getattr(engine, call.method)(*call.arguments)
            except Exception as error:
                value = error
            self._post(partial(call.complete, value))

    def _on_result(
        self, session: ClientSession, number: int, value: Any, client_ids: dict[str, tuple[ClientSession, str]]
    ) -> None:
        if client_ids and isinstance(value, dict):
            client_ids = client_ids | self._owners
            value = with_ids(value, {key: self._display_id(session, key, client_ids) or "" for key in client_ids})
        elif isinstance(value, BatchSnapshot):
            value = with_row_ids(value, lambda engine_id: self._display_id(session, engine_id, self._owners))
        self._send_message(session, encode_reply(number, value))

    @staticmethod
    def _display_id(
        session: ClientSession, engine_id: str, owners: dict[str, tuple[ClientSession, str]]
    ) -> str | None:  # fmt: skip
        """Return a request's id as a client sees it, None for a request without owner."""
        owner = owners.get(engine_id)
        return None if owner is None else display_id(session.number, owner[0].number, owner[1])

    # -- sessions --------------------------------------------------------------------------------------------------

    def _send_message(self, session: ClientSession, message: ToClient) -> None:
        if self._is_connected(session) and not self._send(session.identity, encode(message)):
            self._disconnect(session, "its socket is closed, or it does not read")

    def _is_connected(self, session: ClientSession) -> bool:
        return self._sessions.get(session.identity) is session

    def _disconnect(self, session: ClientSession, reason: str) -> None:
        """Remove the session of a client and end its requests."""
        log.info("client %d disconnected with %d open requests: %s", session.number, len(session.engine_ids), reason)
        del self._sessions[session.identity]
        if session.steps is not None:
            self._update_watchers()
        if self._engine is not None:
            for engine_id in session.engine_ids.values():
                self._engine.abort(engine_id)
        self._drop_adapters(session.adapters.values())
        self._post(partial(self._flush, session))  # drops its unsent outputs
