"""InlineClient: an engine in a thread of this process, for scripts, tests and models that are loaded already."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

from chairlift.core.errors import (
    ChairliftError,
    DuplicateRequestId,
    EngineDead,
    InvalidRequest,
    StructuredOutputFailed,
)
from chairlift.core.load_report import LoadReport, ReplicaState
from chairlift.core.request import EngineOutput, GenerateRequest
from chairlift.engine import state_dump
from chairlift.engine.client.base import OutputSink, StepStatsSink
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.request_limits import RequestLimits, validate_request
from chairlift.engine.runner.base import RunnerInfo
from chairlift.engine.stats import CacheState, SchedulerState
from chairlift.engine.structured.compile_queue import CompiledRequest, CompileQueue
from chairlift.engine.structured.grammar import Grammar
from chairlift.engine.structured.grammar_compiler import GrammarCompiler
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer

log = logging.getLogger(__name__)

QUIET_SECONDS = 0.2
"""An engine that has been idle so long proves its ledger, once, and then sleeps."""

T = TypeVar("T")
Command = Callable[[], None]


class InlineClient:
    """Turns an EngineLoop in its own thread; commands reach it between steps.

    While no request is open the thread sleeps until a command comes.
    """

    def __init__(self, loop: EngineLoop, vocabulary: GrammarTokenizer | None = None) -> None:
        """Start the loop's runner in the new thread; raises what that raises.

        Without a vocabulary no output can have a structure.
        """
        self._loop = loop
        self._preparing: CompileQueue
        self._structures: GrammarCompiler | None = None
        self._commands: deque[Command] = deque()
        self._awake = threading.Condition()
        self._open: dict[str, tuple[OutputSink, GenerateRequest]] = {}
        self._closing = False
        self._proven = False
        self._idle_since = time.monotonic()
        self._dead: EngineDead | None = None
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="chairlift-engine", daemon=True)
        self._thread.start()
        started.result()
        if vocabulary is not None:
            self._structures = GrammarCompiler(vocabulary, loop.info.vocab_size)

    @property
    def state(self) -> ReplicaState:
        """Where the engine is in its life."""
        if self._closing:
            return ReplicaState.STOPPED
        return ReplicaState.READY if self.fatal_error is None else ReplicaState.DEAD

    @property
    def restarts(self) -> int:
        """None: what dies in this process stays dead."""
        return 0

    @property
    def info(self) -> RunnerInfo:
        """What the runner said when it started."""
        return self._loop.info

    @property
    def limits(self) -> RequestLimits:
        """What a request is held against before it is queued."""
        return self._loop.limits

    # -- from any thread -------------------------------------------------------------------------------------------

    def submit(self, request: GenerateRequest, sink: OutputSink) -> None:
        """Queue a request; see EngineClient."""
        validate_request(request, self.limits)
        if request.params.structured is not None and self._structures is None:
            raise InvalidRequest("structured output needs a tokenizer, which this engine lacks", param="structured")
        with self._awake:
            if self._dead is not None:
                raise self._dead
            if request.request_id in self._open:
                raise DuplicateRequestId(request.request_id)
            self._open[request.request_id] = (sink, request)
            if request.params.structured is None or self._structures is None:
                self._commands.append(lambda: self._deliver(self._loop.submit(request)))
                self._awake.notify()
                return
        self._prepare(request, self._structures)

    def _prepare(self, request: GenerateRequest, structures: GrammarCompiler) -> None:
        """Have its grammars made; then it joins the line."""
        since = time.monotonic()
        try:
            grammars = structures.compile_request(request)
        except RuntimeError as error:  # the threads have ended, or there can be no more
            failure = StructuredOutputFailed(f"the structure could not be compiled: {error}")
            self._post(lambda: self._deliver([EngineOutput.failed(request, failure)]))
            return
        self._post(lambda: self._deliver(self._preparing.add(request, grammars, since)))
        grammars.add_done_callback(lambda done: self._post(lambda: self._deliver(self._join(request.request_id, done))))

    def abort(self, request_id: str, index: int | None = None) -> None:
        """End a request, or one choice of it; see EngineClient."""
        self._post(lambda: self._deliver(self._abort(request_id, index)))

    def watch_steps(self, sink: StepStatsSink | None) -> None:
        """Show every step to the sink; see EngineClient."""
        self._loop.on_step = sink

    def load(self) -> LoadReport:
        """Say how busy the engine is; a dead engine says so."""
        try:
            report = self._ask(self._load)
        except EngineDead:
            return LoadReport(state=ReplicaState.STOPPED if self._closing else ReplicaState.DEAD)
        return report

    def scheduler_state(self) -> SchedulerState:
        """Who waits, in order, and why."""
        return self._ask(lambda: state_dump.scheduler_state(self._loop.scheduler))

    def cache_state(self) -> CacheState:
        """The pool in numbers."""
        return self._ask(lambda: state_dump.cache_state(self._loop.scheduler.cache))

    def check_integrity(self) -> list[str]:
        """Prove the ledger."""
        return self._ask(self._loop.check_integrity)

    def flush_cache(self) -> int:
        """Forget every cached block that nobody holds."""
        return self._ask(self._loop.scheduler.cache.evict_all)

    def warmup(self) -> float:
        """Have the runner compute the steps of a warm-up; see EngineClient."""
        assert threading.current_thread() is not self._thread, "a sink cannot wait for a warm-up"
        return self._ask(self._warmup, after=self._collect_in_flight)

    def _collect_in_flight(self) -> None:
        """Take in what is in flight. No question: what goes wrong here kills the engine as in any step."""
        if self._dead is None:
            self._deliver(self._loop.collect_in_flight())

    def _warmup(self) -> float:
        if self._dead is not None:
            raise self._dead
        return self._loop.warmup()

    @property
    def step_began(self) -> float | None:
        """Monotonic seconds at which the step in progress began; None between steps."""
        return self._loop.step_started_at

    @property
    def warmup_began(self) -> float | None:
        """Monotonic seconds at which the warm-up in progress began; None while there is none."""
        return self._loop.warmup_started_at

    @property
    def fatal_error(self) -> EngineDead | None:
        """Why the engine takes no more requests; None while it does."""
        return self._dead

    def close(self) -> None:
        """Stop after the step in progress; open requests end with EngineDead."""
        with self._awake:
            self._closing = True
            self._awake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # -- in the engine's thread ------------------------------------------------------------------------------------

    def _join(self, request_id: str, grammars: "Future[tuple[Grammar, ...]]") -> list[EngineOutput]:
        """Put a request in line whose grammars were made; returns what there is to say of it."""
        prepared = self._preparing.take(request_id, grammars)
        if not isinstance(prepared, CompiledRequest):
            return prepared
        news = self._loop.submit(prepared.request, prepared.grammars, prepared.waited)
        ended = [self._loop.abort(request_id, index) for index in prepared.aborted_choices]
        return [*news, *(output for output in ended if output is not None)]

    def _abort(self, request_id: str, index: int | None) -> list[EngineOutput]:
        room = self._preparing if request_id in self._preparing else self._loop
        output = room.abort(request_id, index)
        return [] if output is None else [output]

    def _load(self) -> LoadReport:
        report, preparing = self._loop.load(), self._preparing
        return replace(
            report, waiting_requests=report.waiting_requests + len(preparing),
            waiting_tokens=report.waiting_tokens + preparing.num_tokens,
        )  # fmt: skip

    # -- from any thread -------------------------------------------------------------------------------------------

    def _post(self, *commands: Command) -> bool:
        """Have commands done between two steps, and no step between them; False when the engine is dead."""
        with self._awake:
            if self._dead is not None:
                return False
            self._commands.extend(commands)  # at once: the engine's thread counts them without the lock
            self._awake.notify()
        return True

    def _ask(self, question: Callable[[], T], after: Command | None = None) -> T:
        """Have the engine's thread answer between two steps, right after a command if there is one."""
        answer: Future[T] = Future()

        def command() -> None:
            try:
                answer.set_result(question())
            except Exception as error:
                answer.set_exception(error)
                if isinstance(error, EngineDead) and self._dead is None:  # the runner is beyond help
                    raise

        if threading.current_thread() is self._thread:
            return question()
        if not self._post(*(() if after is None else (after,)), command):
            raise self._dead or EngineDead("the engine is closed")
        while True:
            try:
                return answer.result(timeout=1.0)
            except TimeoutError:
                if not self._thread.is_alive() and not answer.done():
                    raise self._dead or EngineDead("the engine is closed") from None

    # -- the engine's thread ---------------------------------------------------------------------------------------

    def _run(self, started: "Future[None]") -> None:
        try:
            self._loop.start()
        except BaseException as error:
            self._dead = EngineDead(f"the engine did not start: {error}")
            self._stop_runner()
            started.set_exception(error)
            return
        self._preparing = CompileQueue(self._loop.scheduler.config.max_queue_size)
        started.set_result(None)
        said = "the engine was closed"
        try:
            self._run_loop()
        except BaseException as error:  # a native library may panic
            log.exception("the engine died")
            said = f"the engine died: {error}" if isinstance(error, ChairliftError) else "the engine died of a fault"
        finally:
            self._shutdown(EngineDead(said))

    def _run_loop(self) -> None:
        loop = self._loop
        while self._wait():
            for _ in range(len(self._commands)):  # not what comes meanwhile, so that a flood of them stops no step
                self._commands.popleft()()
            self._deliver(self._preparing.expire())
            if not loop.is_idle:
                self._proven = False
                self._deliver(loop.step())
                self._idle_since = time.monotonic()
            elif self._seconds_to_idle_check() == 0.0:
                self._proven = True
                loop.check_integrity()
                if self._structures is not None:
                    self._make_ready(self._structures)

    def _wait(self) -> bool:
        """Sleep while there is nothing to do; False when it is time to leave."""
        with self._awake:
            while not self._closing and not self._commands and self._loop.is_idle:
                moments = [
                    left
                    for left in (self._preparing.seconds_to_next_deadline(), self._seconds_to_idle_check())
                    if left is not None
                ]
                if not self._awake.wait(min(moments, default=None)):
                    break
            return not self._closing

    def _seconds_to_idle_check(self) -> float | None:
        """Return seconds until the engine will have been idle for QUIET_SECONDS; None when it has proven its ledger."""
        return None if self._proven else max(self._idle_since + QUIET_SECONDS - time.monotonic(), 0.0)

    @staticmethod
    def _make_ready(structures: GrammarCompiler) -> None:
        """Do now what stops the whole process, while nobody waits for it."""
        try:
            structures.tokenizer()
        except ChairliftError as error:
            log.info("%s", error.message)

    def _deliver(self, outputs: Iterable[EngineOutput]) -> None:
        """Hand each sink its news, all of a step at once."""
        by_sink: dict[int, tuple[OutputSink, list[EngineOutput]]] = {}
        for output in outputs:
            if output.request_id not in self._open:
                continue
            sink, _ = self._open[output.request_id]
            by_sink.setdefault(id(sink), (sink, []))[1].append(output)
            if output.is_final:
                with self._awake:
                    del self._open[output.request_id]
        for sink, news in by_sink.values():
            _call(sink, news)

    def _shutdown(self, error: EngineDead) -> None:
        """End every open request, answer every question, free the runner."""
        with self._awake:
            self._dead = error
            still_open, self._open = self._open, {}
            commands, self._commands = self._commands, deque()
        for command in commands:
            try:
                command()
            except Exception:
                log.exception("a command failed while the engine was closing")
        self._preparing.close()
        for sink, request in still_open.values():
            _call(sink, [EngineOutput.failed(request, error)])
        if self._structures is not None:
            self._structures.close()  # waits for what is compiled now
        self._stop_runner()

    def _stop_runner(self) -> None:
        try:
            self._loop.stop()
        except Exception:
            log.exception("the runner did not stop cleanly")


def _call(sink: OutputSink, news: list[EngineOutput]) -> None:
    """A sink that raises is its owner's fault, not the engine's."""
    try:
        sink(news)
    except Exception:
        log.exception("a sink raised")
