"""ProcessClient: uses an engine in another process, watches it, and restarts it when it fails.

    any thread     submit, abort, call ──► send queue ─┐
    client thread                                      ▼       one process: from spawn to its end
        queued ──Ready──► sent ──► Outputs ──► sinks           at its end every open request ends, once
        ▲                                                      then the next process starts
        └── requests submitted between two processes

An engine that another process has spawned (connect) is not restarted.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import zmq

from chairlift.core.cpu_affinity_and_priority import usable_cpus
from chairlift.core.errors import ChairliftError, EngineDead, InvalidRequest
from chairlift.core.host.process_activity import UndelayedTimer
from chairlift.core.load_report import LoadReport, ReplicaState
from chairlift.core.request import GenerateRequest
from chairlift.engine.batch_snapshot import BatchSnapshot
from chairlift.engine.client.base import OutputSink, StepStatsSink
from chairlift.engine.client.creator_process import CreatorProcess
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.ipc.engine_connection import EngineConnection
from chairlift.engine.ipc.engine_process import EngineProcess, PrespawnedProcess, spawn
from chairlift.engine.ipc.error_encoding import as_engine_error
from chairlift.engine.ipc.in_flight_requests import InFlightRequest, InFlightRequests
from chairlift.engine.ipc.liveness_limits import LivenessConfig
from chairlift.engine.ipc.messages import (
    Abort,
    EngineHeartbeat,
    Goodbye,
    Outputs,
    Ready,
    RemoteReply,
    StartFailed,
    Submit,
    ToClient,
    UnknownClient,
    WatchSteps,
    WireError,
    encode,
)
from chairlift.engine.ipc.pending_calls import PendingCalls
from chairlift.engine.ipc.restart_backoff import RestartBackoff
from chairlift.engine.ipc.send_queue import SendQueue
from chairlift.engine.request_limits import RequestLimits
from chairlift.engine.request_validation import ValidatedRequest, validate_request
from chairlift.engine.runner.base import AdapterInfo, RunnerInfo, RunnerSpec
from chairlift.engine.scheduler_and_cache_state import CacheState, SchedulerState
from chairlift.engine.step_stats import StepStats
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer

log = logging.getLogger(__name__)

LOAD_SECONDS = 1.0
"""Seconds that load() waits for new counts; during a longer step it returns those of the last heartbeat."""


class ProcessClient:
    """An EngineClient of an engine in another process. Its thread calls the sinks, one list a message.

    In a fork of the client's process everything raises EngineDead, and the engine of that process is left alone.
    """

    def __init__(self, source: str | Callable[[], EngineProcess], watch: LivenessConfig | None = None) -> None:
        """Connect to an engine and wait until it accepts requests; raises the error of a failed start.

        `source` is the address of a running engine, or a function that spawns one: then this client watches, kills
        and restarts it.
        """
        self._source = source
        self._creator = CreatorProcess()
        self._watch = watch or LivenessConfig()
        self._restarts = RestartBackoff(self._watch)
        self._open = InFlightRequests()
        self._send_queue = SendQueue(self._open)
        self._pending_calls = PendingCalls()
        self._step_sink: StepStatsSink | None = None
        self._connection: EngineConnection | None = None
        self._process: EngineProcess | None = None
        self._closing = False
        self._info: RunnerInfo
        self._limits: RequestLimits
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="chairlift-client", daemon=True)
        self._thread.start()
        try:
            self._started.result()
        except BaseException:
            self.close()
            raise

    @property
    def info(self) -> RunnerInfo:
        """The RunnerInfo from the start of the runner."""
        return self._info

    @property
    def limits(self) -> RequestLimits:
        """The limits that a request is checked against before it is queued."""
        return self._limits

    @property
    def state(self) -> ReplicaState:
        """The lifecycle state of the engine; STARTING between two processes, DEAD in a fork."""
        if not self._creator.is_this:
            return ReplicaState.DEAD
        if self._open.closed is not None:
            return ReplicaState.STOPPED if self._closing else ReplicaState.DEAD
        connection = self._connection
        return ReplicaState.READY if connection is not None and connection.ready else ReplicaState.STARTING

    @property
    def restarts(self) -> int:
        """Number of restarts of the engine."""
        return self._restarts.count

    @property
    def is_hanging(self) -> bool:
        """Whether a step or a warm-up takes too long; the engine is killed for that if this client spawned it."""
        connection = self._connection
        return connection is not None and bool(connection.hang_reason)

    @property
    def process(self) -> EngineProcess | None:
        """The engine process while it runs; None for one that this client did not spawn."""
        return self._process

    # -- from any thread -------------------------------------------------------------------------------------------

    def submit(self, request: GenerateRequest | ValidatedRequest, sink: OutputSink) -> None:
        """Queue a request; see EngineClient. During a restart of the engine it waits here."""
        self._creator.check()
        request = validate_request(request, self._limits).request
        try:
            frame = encode(Submit(request))
        except WireError as error:
            raise InvalidRequest(str(error)) from error
        entry = InFlightRequest(request, sink, frame, time.monotonic())
        self._open.add(entry)
        self._send_queue.put(entry)

    def abort(self, request_id: str, index: int | None = None) -> None:
        """End a request, or one choice of it; see EngineClient."""
        if self._creator.is_this and self._open.get(request_id) is not None:
            self._send_queue.put(Abort(request_id, index))

    def watch_steps(self, sink: StepStatsSink | None) -> None:
        """Pass step stats to the sink; see EngineClient.

        Continues after a restart of the engine. The engine process drops stats that this process is too slow to read;
        their number is logged.
        """
        self._creator.check()
        self._step_sink = sink
        self._send_queue.put(WatchSteps(sink is not None))

    def load(self) -> LoadReport:
        """Return how busy the engine is: counts of now, or of the last heartbeat during a long step."""
        connection, state = self._connection, self.state
        if connection is None or state is not ReplicaState.READY:
            return LoadReport(state=state)
        if threading.current_thread() is self._thread:
            return connection.load
        try:
            report: LoadReport = self._call("load", LOAD_SECONDS, through_warmup=False)
        except EngineDead:
            return connection.load if self._connection is connection else self.load()
        return report

    def scheduler_state(self) -> SchedulerState:
        """Return the waiting requests, in order, and why; another client's ids follow the client's number."""
        state: SchedulerState = self._call("scheduler_state", self._watch.call_timeout)
        return state

    def cache_state(self) -> CacheState:
        """Return the block counts of the KV cache."""
        state: CacheState = self._call("cache_state", self._watch.call_timeout)
        return state

    def batch_snapshot(self) -> BatchSnapshot:
        """Return every open sequence, the last steps and the block map; another client's ids follow its number."""
        snapshot: BatchSnapshot = self._call("batch_snapshot", self._watch.call_timeout)
        return snapshot

    def check_integrity(self) -> list[str]:
        """Check the integrity of blocks and slots."""
        errors: list[str] = self._call("check_integrity", self._watch.call_timeout)
        return errors

    def flush_cache(self) -> int:
        """Evict every cached block without a reference."""
        flushed: int = self._call("flush_cache", self._watch.call_timeout)
        return flushed

    def warmup(self) -> float:
        """Run the warm-up steps; see EngineClient. They may take as long as a start."""
        seconds: float = self._call("warmup", self._watch.start_timeout)
        return seconds

    def load_adapter(self, number: int, folder: str) -> AdapterInfo:
        """Load a LoRA adapter; see EngineClient. It may take as long as a start."""
        info: AdapterInfo = self._call("load_adapter", self._watch.start_timeout, number, folder)
        return info

    def drop_adapter(self, number: int) -> None:
        """Free a LoRA adapter; see EngineClient."""
        self._call("drop_adapter", self._watch.call_timeout, number)

    def close(self) -> None:
        """End all requests with EngineDead, stop an engine that this client spawned, wait for its end.

        Does nothing in a fork.
        """
        if not self._creator.is_this:
            return
        self._closing = True
        self._send_queue.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _call(self, method: str, timeout: float, *arguments: int | str, through_warmup: bool = True) -> Any:
        """Call a method and wait for its result.

        The time of a warm-up does not count, and not that for which other programs delay a process of this client.
        Without `through_warmup` both count.
        """
        self._creator.check()
        assert threading.current_thread() is not self._thread, "a sink cannot wait for a reply"
        message, reply = self._pending_calls.start(method, *arguments)
        self._send_queue.put(message)
        process = self._process if through_warmup else None
        timer = UndelayedTimer([] if process is None else [process.pid])
        until = time.monotonic() + timeout
        try:
            while True:
                try:
                    return reply.result(max(0.0, until - time.monotonic()))
                except TimeoutError:
                    connection = self._connection
                    later = time.monotonic() + timeout - timer.elapsed()
                    if connection is not None and through_warmup:
                        later = max(later, connection.warmup_seen_at + timeout)
                    if later <= until:
                        raise EngineDead(f"the engine did not reply to {method!r} within {timeout:g} s") from None
                    until = later
        finally:
            self._pending_calls.forget(message.number)

    # -- client thread: engine processes ---------------------------------------------------------------------------

    def _run(self) -> None:
        error: ChairliftError = EngineDead("the engine client died of an internal error")
        try:
            with zmq.Context() as context:
                error = self._run_one_process(context)
                while not self._closing and not self._is_final() and self._pause(error):
                    error = self._run_one_process(context)
        except Exception:
            log.exception("the engine client died")
        finally:
            if self._closing:
                error = EngineDead("the engine was closed")
            self._shutdown(error)

    def _run_one_process(self, context: "zmq.Context[zmq.Socket[bytes]]") -> ChairliftError:
        """Use one engine process until its end, then end every open request. Returns the reason."""
        error: ChairliftError = EngineDead("the engine was closed")
        try:
            if isinstance(self._source, str):
                address = self._source
            else:
                self._process = self._source()
                address = self._process.address
            self._connection = EngineConnection(context, address, self._send_queue.fileno(), self._watch, self._process)
            self._exchange_messages(self._connection)
        except ChairliftError as failure:
            error = failure
        except Exception as failure:
            log.exception("the engine client failed")
            error = as_engine_error(failure, "the engine cannot be reached")
        connection, self._connection = self._connection, None
        process, self._process = self._process, None
        if not self._closing and self._started.done():  # the caller gets the error of a failed start
            log.error("%s", error)
        self._end(error)
        if connection is not None:
            connection.close(str(error))
        if process is not None:
            process.stop() if self._closing or not self._started.done() else process.kill()
        return error

    def _exchange_messages(self, connection: EngineConnection) -> None:
        """Exchange messages until close(); raises the error of a failed engine."""
        while not self._closing:
            for message in connection.receive():
                self._handle(connection, message)
            self._send_queue.flush(connection)
            if (failure := connection.failure_reason()) is not None:
                for message in connection.drain_socket():
                    self._handle(connection, message)
                raise EngineDead(failure)

    def _is_final(self) -> bool:
        """Return whether no restart follows: the first start failed, or the engine is not a child."""
        return isinstance(self._source, str) or not self._started.done()

    def _pause(self, error: ChairliftError) -> bool:
        """Wait before the next process; returns False when none follows."""
        now = time.monotonic()
        pause = self._restarts.next(now)
        if pause is None:
            log.error("the engine failed too often and is not restarted: %s", error)
            return False
        log.warning("the engine is started again in %.1f s (restart %d)", pause, self.restarts)
        until, poller = now + pause, zmq.Poller()
        poller.register(self._send_queue.fileno(), zmq.POLLIN)
        while not self._closing and (remaining := until - time.monotonic()) > 0:
            poller.poll(int(min(remaining, self._watch.interval) * 1000) + 1)
            self._send_queue.flush(None)
        return not self._closing

    # -- client thread: messages -----------------------------------------------------------------------------------

    def _handle(self, connection: EngineConnection, message: ToClient) -> None:
        match message:
            case Outputs(outputs, stats, num_dropped):
                if stats or num_dropped:
                    self._deliver_stats(stats, num_dropped)
                self._open.deliver(outputs)
                connection.acknowledge()
            case RemoteReply():
                self._pending_calls.complete(message)
            case Ready(pid, info, config):
                log.info("the engine is ready in process %d", pid)
                self._info, self._limits = info, RequestLimits.from_config(config, info)
                self._send_queue.limit = config.max_queue_size
                connection.ready = True
                if self._step_sink is not None:
                    connection.send(WatchSteps(True))
                if not self._started.done():
                    self._started.set_result(None)
            case UnknownClient():
                if connection.ready:
                    self._end(EngineDead("the engine dropped this client: it was silent, or too slow to read"))
                    connection.send_hello()
            case StartFailed(error):
                raise error
            case Goodbye(reason):
                raise EngineDead(reason)
            case EngineHeartbeat():
                pass

    def _deliver_stats(self, steps: list[StepStats], num_dropped: int) -> None:
        if num_dropped:
            log.warning("step stats dropped for %d steps: this process reads too slowly", num_dropped)
        for stats in steps:
            if (sink := self._step_sink) is None:
                return
            try:
                sink(stats)
            except Exception:
                log.exception("a step stats sink raised")

    # -- client thread: end ----------------------------------------------------------------------------------------

    def _end(self, cause: ChairliftError) -> None:
        """End every open request and every pending call; their queued messages are dropped."""
        self._send_queue.clear()
        dead = cause if isinstance(cause, EngineDead) else EngineDead(f"the engine did not start again: {cause}")
        self._open.end(dead)
        self._pending_calls.fail_all(dead)

    def _shutdown(self, cause: ChairliftError) -> None:
        dead = cause if isinstance(cause, EngineDead) else EngineDead(f"the engine did not start: {cause}")
        self._open.close(dead)
        self._pending_calls.close(dead)
        self._send_queue.close()
        if not self._started.done():
            self._started.set_exception(cause)


def connect(address: str, *, watch: LivenessConfig | None = None) -> ProcessClient:
    """Connect to an engine that another process has spawned; clients do not share request ids."""
    return ProcessClient(address, watch)


def start_engine_process(
    spec: RunnerSpec, config: SchedulerConfig, *, enable_prefix_caching: bool = True,
    watch: LivenessConfig | None = None,
    vocabulary: GrammarTokenizer | None = None, launched: PrespawnedProcess | None = None,
    draft_spec: RunnerSpec | None = None,
) -> ProcessClient:  # fmt: skip
    """Spawn an engine and connect to it; after a failure it restarts on the same processors.

    `launched` is a prespawned process for the first start.
    """
    cpus = usable_cpus()

    def source() -> EngineProcess:
        return spawn(
            spec, config, enable_prefix_caching=enable_prefix_caching, watch=watch, vocabulary=vocabulary, cpus=cpus,
            launched=launched, draft_spec=draft_spec,
        )  # fmt: skip

    return ProcessClient(source, watch)


__all__ = ["EngineProcess", "PrespawnedProcess", "ProcessClient", "connect", "spawn", "start_engine_process"]
