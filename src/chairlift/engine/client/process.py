"""ProcessClient: an engine in another process, watched, and started again when it dies.

    any thread     submit, abort, ask ──► outbox ─┐
    its thread                                    ▼            a life: from spawn to death
        waiting in line ──Welcome──► sent ──► Outputs ──► sinks        a death ends every open request, once
        ▲                                                              then the next life begins
        └── what is submitted between two lives

Of an engine that somebody else has spawned (connect) there is one life only.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import zmq

from chairlift.core.cpu_affinity import usable_cpus
from chairlift.core.errors import ChairliftError, EngineDead, InvalidRequest
from chairlift.core.load_report import LoadReport, ReplicaState
from chairlift.core.request import GenerateRequest
from chairlift.engine.client.base import OutputSink, StepStatsSink
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.ipc.engine_connection import EngineConnection
from chairlift.engine.ipc.liveness import LivenessConfig, RestartBackoff
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
    as_engine_error,
    encode,
)
from chairlift.engine.ipc.open_requests import OpenRequest, OpenRequests
from chairlift.engine.ipc.pending_calls import PendingCalls
from chairlift.engine.ipc.send_queue import SendQueue
from chairlift.engine.ipc.spawn import EngineProcess, PrespawnedProcess, spawn
from chairlift.engine.request_limits import RequestLimits, validate_request
from chairlift.engine.runner.base import RunnerInfo, RunnerSpec
from chairlift.engine.stats import CacheState, SchedulerState, StepStats
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer

log = logging.getLogger(__name__)

LOAD_SECONDS = 1.0
"""How long load() waits for a fresh count; a step that takes longer gets the last heartbeat's."""


class ProcessClient:
    """An EngineClient over an engine in another process. Sinks are called from its thread, one list a message."""

    def __init__(self, source: str | Callable[[], EngineProcess], watch: LivenessConfig | None = None) -> None:
        """Reach an engine and wait until it takes requests; raises what kept it from starting.

        `source` is the address of an engine that lives, or a function that spawns one: then it is ours to watch, to
        kill and to start again.
        """
        self._source = source
        self._watch = watch or LivenessConfig()
        self._restarts = RestartBackoff(self._watch)
        self._open = OpenRequests()
        self._outbox = SendQueue(self._open)
        self._questions = PendingCalls()
        self._step_sink: StepStatsSink | None = None
        self._link: EngineConnection | None = None
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
        """What the runner said when it started."""
        return self._info

    @property
    def limits(self) -> RequestLimits:
        """What a request is held against before it is queued."""
        return self._limits

    @property
    def state(self) -> ReplicaState:
        """Where the engine is in its life; between two lives it is starting."""
        if self._open.closed is not None:
            return ReplicaState.STOPPED if self._closing else ReplicaState.DEAD
        link = self._link
        return ReplicaState.READY if link is not None and link.ready else ReplicaState.STARTING

    @property
    def restarts(self) -> int:
        """How often the engine was started again."""
        return self._restarts.count

    @property
    def process(self) -> EngineProcess | None:
        """The engine's process while it lives and is ours."""
        return self._process

    # -- from any thread -------------------------------------------------------------------------------------------

    def submit(self, request: GenerateRequest, sink: OutputSink) -> None:
        """Queue a request; see EngineClient. While the engine is started again it waits here."""
        validate_request(request, self._limits)
        try:
            frame = encode(Submit(request))
        except WireError as error:
            raise InvalidRequest(str(error)) from error
        entry = OpenRequest(request, sink, frame, time.monotonic())
        self._open.add(entry)
        self._outbox.put(entry)

    def abort(self, request_id: str, index: int | None = None) -> None:
        """End a request, or one choice of it; see EngineClient."""
        if self._open.get(request_id) is not None:
            self._outbox.put(Abort(request_id, index))

    def watch_steps(self, sink: StepStatsSink | None) -> None:
        """Show every step to the sink; see EngineClient.

        Also those of an engine that is started again. Steps that this process is too slow to read are left out in the
        engine's process; how many is logged.
        """
        self._step_sink = sink
        self._outbox.put(WatchSteps(sink is not None))

    def load(self) -> LoadReport:
        """Say how busy the engine is: counts of this moment, or of the last heartbeat while a long step goes on."""
        link, state = self._link, self.state
        if link is None or state is not ReplicaState.READY:
            return LoadReport(state=state)
        if threading.current_thread() is self._thread:
            return link.load
        try:
            report: LoadReport = self._ask("load", LOAD_SECONDS, through_warmup=False)
        except EngineDead:
            return link.load if self._link is link else self.load()
        return report

    def scheduler_state(self) -> SchedulerState:
        """Who waits, in order, and why; other clients' requests stand behind their client's number."""
        state: SchedulerState = self._ask("scheduler_state", self._watch.call_timeout)
        return state

    def cache_state(self) -> CacheState:
        """The pool in numbers."""
        state: CacheState = self._ask("cache_state", self._watch.call_timeout)
        return state

    def check_integrity(self) -> list[str]:
        """Prove the ledger."""
        found: list[str] = self._ask("check_integrity", self._watch.call_timeout)
        return found

    def flush_cache(self) -> int:
        """Forget every cached block that nobody holds."""
        flushed: int = self._ask("flush_cache", self._watch.call_timeout)
        return flushed

    def warmup(self) -> float:
        """Have the runner compute the steps of a warm-up; see EngineClient. It may take as long as a start."""
        seconds: float = self._ask("warmup", self._watch.start_timeout)
        return seconds

    def close(self) -> None:
        """End every open request with EngineDead, stop the engine if it is ours; returns when all is gone."""
        self._closing = True
        self._outbox.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _ask(self, question: str, timeout: float, *, through_warmup: bool = True) -> Any:
        """Wait for an answer; a warm-up, whoever asked for it, does not count as waiting."""
        assert threading.current_thread() is not self._thread, "a sink cannot wait for an answer"
        message, answer = self._questions.start(question)
        self._outbox.put(message)
        until = time.monotonic() + timeout
        try:
            while True:
                try:
                    return answer.result(max(0.0, until - time.monotonic()))
                except TimeoutError:
                    link = self._link
                    later = until if link is None or not through_warmup else link.warmup_seen_at + timeout
                    if later <= until:
                        raise EngineDead(f"the engine did not answer {question!r} within {timeout:g} s") from None
                    until = later
        finally:
            self._questions.forget(message.number)

    # -- its own thread: lives -------------------------------------------------------------------------------------

    def _run(self) -> None:
        error: ChairliftError = EngineDead("the engine client died of a fault")
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
        """Go through one engine's life; every request that is open at its end is ended. Returns why it ended."""
        error: ChairliftError = EngineDead("the engine was closed")
        try:
            if isinstance(self._source, str):
                address = self._source
            else:
                self._process = self._source()
                address = self._process.address
            self._link = EngineConnection(context, address, self._outbox.fileno(), self._watch, self._process)
            self._exchange_messages(self._link)
        except ChairliftError as fault:
            error = fault
        except Exception as fault:
            log.exception("the engine client failed")
            error = as_engine_error(fault, "the engine cannot be reached")
        link, self._link = self._link, None
        process, self._process = self._process, None
        if not self._closing:
            log.error("%s", error)
        self._end(error)
        if link is not None:
            link.close(str(error))
        if process is not None:
            process.stop() if self._closing or not self._started.done() else process.kill()
        return error

    def _exchange_messages(self, link: EngineConnection) -> None:
        """Carry messages both ways until it is time to leave; raises why the engine is dead."""
        while not self._closing:
            for message in link.receive():
                self._take(link, message)
            self._outbox.flush(link)
            if (fault := link.failure_reason()) is not None:
                for message in link.drain_socket():
                    self._take(link, message)
                raise EngineDead(fault)

    def _is_final(self) -> bool:
        """Whether nobody tries again: the first start failed, or the engine is somebody else's."""
        return isinstance(self._source, str) or not self._started.done()

    def _pause(self, error: ChairliftError) -> bool:
        """Wait before the next life; False when there will be none."""
        now = time.monotonic()
        pause = self._restarts.next(now)
        if pause is None:
            log.error("the engine died too often and is not started again: %s", error)
            return False
        log.warning("the engine is started again in %.1f s (restart %d)", pause, self.restarts)
        until, poller = now + pause, zmq.Poller()
        poller.register(self._outbox.fileno(), zmq.POLLIN)
        while not self._closing and (left := until - time.monotonic()) > 0:
            poller.poll(int(min(left, self._watch.interval) * 1000) + 1)
            self._outbox.flush(None)
        return not self._closing

    # -- its own thread: messages ----------------------------------------------------------------------------------

    def _take(self, link: EngineConnection, message: ToClient) -> None:
        match message:
            case Outputs(outputs, stats, unseen):
                if stats or unseen:
                    self._show(stats, unseen)
                self._open.deliver(outputs)
                link.acknowledge()
            case RemoteReply():
                self._questions.complete(message)
            case Ready(pid, info, config):
                log.info("the engine is ready in process %d", pid)
                self._info, self._limits = info, RequestLimits.from_config(config, info)
                self._outbox.limit = config.max_queue_size
                link.ready = True
                if self._step_sink is not None:
                    link.send(WatchSteps(True))
                if not self._started.done():
                    self._started.set_result(None)
            case UnknownClient():
                if link.ready:
                    self._end(EngineDead("the engine dropped this client: it was silent, or too slow to read"))
                    link.send_hello()
            case StartFailed(error):
                raise error
            case Goodbye(reason):
                raise EngineDead(reason)
            case EngineHeartbeat():
                pass

    def _show(self, steps: list[StepStats], unseen: int) -> None:
        if unseen:
            log.warning("%d steps were not seen: this process reads too slowly", unseen)
        for stats in steps:
            if (sink := self._step_sink) is None:
                return
            try:
                sink(stats)
            except Exception:
                log.exception("who watches the steps raised")

    # -- its own thread: ends --------------------------------------------------------------------------------------

    def _end(self, cause: ChairliftError) -> None:
        """End every open request and every question; nothing of them is sent any more."""
        self._outbox.clear()
        dead = cause if isinstance(cause, EngineDead) else EngineDead(f"the engine did not start again: {cause}")
        self._open.end(dead)
        self._questions.fail_all(dead)

    def _shutdown(self, cause: ChairliftError) -> None:
        dead = cause if isinstance(cause, EngineDead) else EngineDead(f"the engine did not start: {cause}")
        self._open.close(dead)
        self._questions.close(dead)
        self._outbox.close()
        if not self._started.done():
            self._started.set_exception(cause)


def connect(address: str, *, watch: LivenessConfig | None = None) -> ProcessClient:
    """Reach an engine that somebody else has spawned. Several clients may; their request ids do not meet."""
    return ProcessClient(address, watch)


def start_engine_process(
    spec: RunnerSpec, config: SchedulerConfig, *, enable_prefix_caching: bool = True,
    watch: LivenessConfig | None = None,
    vocabulary: GrammarTokenizer | None = None, launched: PrespawnedProcess | None = None,
) -> ProcessClient:  # fmt: skip
    """Spawn an engine and reach it; it is watched, and started again when it dies, on the same processors.

    Its first process may have been launched before.
    """
    cpus = usable_cpus()

    def source() -> EngineProcess:
        return spawn(
            spec, config, enable_prefix_caching=enable_prefix_caching, watch=watch, vocabulary=vocabulary, cpus=cpus,
            launched=launched,
        )  # fmt: skip

    return ProcessClient(source, watch)


__all__ = ["EngineProcess", "PrespawnedProcess", "ProcessClient", "connect", "spawn", "start_engine_process"]
