"""InlineClient: runs an engine in a thread of this process, for scripts, tests and models already loaded."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from chairlift.core.adapter_version import missing_adapter
from chairlift.core.cpu_affinity_and_priority import lower_priority
from chairlift.core.engine_output import EngineOutput
from chairlift.core.errors import ChairliftError, DuplicateRequestId, EngineDead, InvalidRequest, StructuredOutputFailed
from chairlift.core.load_report import LoadReport, ReplicaState
from chairlift.core.request import GenerateRequest
from chairlift.engine import state_snapshot
from chairlift.engine.batch_recorder import with_compiling_requests
from chairlift.engine.batch_snapshot import BatchSnapshot
from chairlift.engine.client.base import OutputSink, StepStatsSink
from chairlift.engine.client.close_at_exit import close_at_exit
from chairlift.engine.client.creator_process import CreatorProcess
from chairlift.engine.client.engine_pause import EngineHold
from chairlift.engine.client.output_delivery import call_sinks
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.ipc.liveness_limits import LivenessConfig
from chairlift.engine.request_limits import RequestLimits
from chairlift.engine.request_validation import ValidatedRequest, validate_request
from chairlift.engine.runner.base import AdapterInfo, RunnerInfo
from chairlift.engine.scheduler_and_cache_state import CacheState, SchedulerState
from chairlift.engine.structured.compile_queue import CompiledRequest, CompileQueue
from chairlift.engine.structured.grammar_compiler import GrammarCompiler
from chairlift.engine.structured.grammar_matcher import GrammarMatcher
from chairlift.engine.structured.grammar_tokenizer import GrammarTokenizer

log = logging.getLogger(__name__)

IDLE_CHECK_SECONDS = 0.2
"""Idle seconds after which the engine checks its integrity, once, and then sleeps."""

T = TypeVar("T")
Command = Callable[[], None]


class InlineClient:
    """Runs an EngineLoop in its own thread; commands reach it between steps.

    While no request is open the thread sleeps until a command comes. `loop` belongs to that thread, which `holds`
    stop between two steps. In a fork of the process everything raises EngineDead, and nothing waits; see `creator`.

    Attributes:
        thread: the engine thread; another one after move_to_new_thread().
    """

    def __init__(
        self, loop: EngineLoop, vocabulary: GrammarTokenizer | None = None, watch: LivenessConfig | None = None
    ) -> None:  # fmt: skip
        """Start the loop's runner in the new thread; raises the error of that start.

        Without a vocabulary the engine rejects structured output. `watch` has the limits of is_hanging.
        """
        self.loop = loop
        self._watch = watch or LivenessConfig()
        self.creator = CreatorProcess()
        self._compile_queue: CompileQueue
        self._grammar_compiler: GrammarCompiler | None = None
        self._commands: deque[Command] = deque()
        self._awake = threading.Condition()
        self._open: dict[str, tuple[OutputSink, GenerateRequest]] = {}
        self._closing = False
        self._is_checked = False
        self._idle_since = time.monotonic()
        self._trim_at: float | None = None
        self._dead: EngineDead | None = None
        self.holds: list[EngineHold] = []
        self._has_ended = threading.Event()
        self._adapters: set[int] = set()
        self._hand_over: Command | None = None  # lets another thread run the engine
        started: Future[None] = Future()
        self.thread = threading.Thread(target=self._run, args=(started,), name="chairlift-engine", daemon=True)
        close_at_exit(self)  # before the start, so that an exit waits for it
        try:
            self.thread.start()
        except RuntimeError:
            self._has_ended.set()  # an exit must not wait for it
            raise
        started.result()
        if vocabulary is not None:
            self._grammar_compiler = GrammarCompiler(vocabulary, loop.info.vocab_size)

    @property
    def state(self) -> ReplicaState:
        """The lifecycle state of the engine."""
        if self._closing:
            return ReplicaState.STOPPED
        return ReplicaState.READY if self.fatal_error is None else ReplicaState.DEAD

    @property
    def restarts(self) -> int:
        """Always 0: an engine that failed in this process is not restarted."""
        return 0

    @property
    def is_hanging(self) -> bool:
        """Whether a step or a warm-up takes too long; a thread cannot be killed, so its requests stay open."""
        now = time.monotonic()
        step, warmup = (
            0.0 if since is None else now - since for since in (self.step_started_at, self.warmup_started_at)
        )
        return bool(self._watch.hang_reason(step, warmup))

    @property
    def info(self) -> RunnerInfo:
        """The RunnerInfo from the start of the runner."""
        return self.loop.info

    @property
    def limits(self) -> RequestLimits:
        """The limits that a request is checked against before it is queued."""
        return self.loop.limits

    # -- from any thread -------------------------------------------------------------------------------------------

    def submit(self, request: GenerateRequest | ValidatedRequest, sink: OutputSink) -> None:
        """Queue a request; see EngineClient."""
        self.creator.check()
        validated = validate_request(request, self.limits)
        request = validated.request
        if request.params.structured is not None and self._grammar_compiler is None:
            raise InvalidRequest(
                "structured output needs a tokenizer, which this engine does not have", param="structured"
            )
        with self._awake:
            if self._dead is not None:
                raise self._dead
            if request.adapter.number and request.adapter.number not in self._adapters:
                raise missing_adapter()
            if request.request_id in self._open:
                raise DuplicateRequestId(request.request_id)
            self._open[request.request_id] = (sink, request)
            if request.params.structured is None or self._grammar_compiler is None:
                self._commands.append(lambda: self.deliver(self.loop.submit(validated)))
                self._awake.notify()
                return
        self._compile(validated, self._grammar_compiler)

    def _compile(self, validated: ValidatedRequest, grammar_compiler: GrammarCompiler) -> None:
        """Start to compile the grammars of a request, which is enqueued after that."""
        since = time.monotonic()
        try:
            grammars = grammar_compiler.compile_request(validated.request)
        except RuntimeError as error:  # the threads have ended, or no more can start
            failure = StructuredOutputFailed(f"the structured output could not be compiled: {error}")
            self.post(lambda: self.deliver([EngineOutput.failed(validated.request, failure)]))
            return
        self.post(lambda: self.deliver(self._compile_queue.add(validated, grammars, since)))
        grammars.add_done_callback(
            lambda done: self.post(lambda: self.deliver(self._enqueue(validated.request_id, done)))
        )

    def abort(self, request_id: str, index: int | None = None) -> None:
        """End a request, or one choice of it; see EngineClient."""
        self.post(lambda: self.deliver(self._abort(request_id, index)))

    def watch_steps(self, sink: StepStatsSink | None) -> None:
        """Pass step stats to the sink; see EngineClient."""
        self.loop.on_step = sink

    def load(self) -> LoadReport:
        """Return how busy the engine is; also for a failed engine."""
        try:
            report = self.run_command(self._load)
        except EngineDead:
            return LoadReport(state=ReplicaState.STOPPED if self._closing else ReplicaState.DEAD)
        return report

    def scheduler_state(self) -> SchedulerState:
        """Return the waiting requests, in order, and their wait reasons."""
        return self.run_command(lambda: state_snapshot.scheduler_state(self.loop.scheduler, self.loop.now()))

    def cache_state(self) -> CacheState:
        """Return the block counts of the KV cache."""
        return self.run_command(lambda: state_snapshot.cache_state(self.loop.scheduler.cache))

    def batch_snapshot(self) -> BatchSnapshot:
        """Return every open sequence, the last steps and the block map; see EngineClient."""
        return self.run_command(
            lambda: with_compiling_requests(self.loop.batch_snapshot(), self._compile_queue.requests())
        )

    def check_integrity(self) -> list[str]:
        """Check the integrity of blocks and slots."""
        return self.run_command(self.loop.check_integrity)

    def flush_cache(self) -> int:
        """Evict every cached block without a reference."""
        return self.run_command(self.loop.scheduler.cache.evict_all)

    def warmup(self) -> float:
        """Run the warm-up steps; see EngineClient."""
        assert threading.current_thread() is not self.thread, "a sink cannot wait for a warm-up"
        return self.run_command(self._warmup, after=self._collect_in_flight)

    def load_adapter(self, number: int, folder: str) -> AdapterInfo:
        """Load a LoRA adapter in the calling thread; see EngineClient."""
        self.creator.check()
        if (error := self.fatal_error) is not None:
            raise error
        info = self.loop.load_adapter(number, folder)
        with self._awake:
            if self._dead is not None:
                raise self._dead
            self._adapters.add(number)
        return info

    def drop_adapter(self, number: int) -> None:
        """Free an adapter between two steps; see EngineClient."""
        assert threading.current_thread() is not self.thread, "a sink cannot wait for the steps in flight"
        with self._awake:
            self._adapters.discard(number)
        self.run_command(lambda: self._drop_adapter(number), after=self._collect_in_flight)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold the engine between two steps, with none in flight, while the context is open.

        The cache is forgotten at its end, because the holder may have changed the weights; open requests keep theirs.
        Raises EngineDead when the engine has ended.
        """
        self.creator.check()
        hold = EngineHold()
        with self._awake:
            if self._closing:
                raise EngineDead("the engine is closed")
            self.holds.append(hold)
        try:
            is_posted = self.post(self._collect_in_flight, hold.run, self._forget_cache)
            if not is_posted or not hold.wait_until_held(lambda: not self._has_ended.is_set()):
                raise self._dead or EngineDead("the engine is closed")
            yield
        finally:
            self.holds.remove(hold)
            hold.release()

    def _forget_cache(self) -> None:
        self.loop.scheduler.cache.forget_all()

    def _collect_in_flight(self) -> None:
        """Collect the steps in flight. A plain command: an error here stops the engine as in any step."""
        if self._dead is None:
            self.deliver(self.loop.collect_in_flight())

    def _drop_adapter(self, number: int) -> None:
        if self._dead is not None:
            raise self._dead
        self.loop.drop_adapter(number)

    def _warmup(self) -> float:
        if self._dead is not None:
            raise self._dead
        return self.loop.warmup()

    @property
    def step_started_at(self) -> float | None:
        """Monotonic seconds at which the step in progress started; None between steps."""
        return self.loop.step_started_at

    @property
    def warmup_started_at(self) -> float | None:
        """Monotonic seconds at which the warm-up in progress started; None without one."""
        return self.loop.warmup_started_at

    @property
    def fatal_error(self) -> EngineDead | None:
        """The error for which the engine rejects requests; None while it accepts them."""
        return self._dead or self.creator.fork_error

    def close(self) -> None:
        """Stop after the step in progress; open requests end with EngineDead. Does nothing in a fork."""
        if not self.creator.is_this:
            return
        with self._awake:
            self._closing = True
            self._awake.notify()
            for hold in self.holds:  # no step follows, so their holders are not disturbed
                hold.release()
        if threading.current_thread() is not self.thread:
            self._has_ended.wait()
            self.thread.join()

    def move_to_new_thread(self, niceness: int) -> None:
        """Let the engine go on in a new engine thread after the step in progress; does not wait for that.

        The new thread, and the threads that compute, are `niceness` levels nicer than the calling thread: a thread's
        priority can be lowered, but not raised. Raises RuntimeError if the thread cannot be started, and EngineDead in
        a fork.
        """
        self.creator.check()
        threading.Thread(target=self._take_over, args=(niceness,), name="chairlift-engine", daemon=True).start()

    # -- in the engine thread --------------------------------------------------------------------------------------

    def _enqueue(self, request_id: str, grammars: "Future[tuple[GrammarMatcher, ...]]") -> list[EngineOutput]:
        """Enqueue a request with compiled grammars; return its outputs so far."""
        compiled = self._compile_queue.take(request_id, grammars)
        if not isinstance(compiled, CompiledRequest):
            return compiled
        outputs = self.loop.submit(compiled.validated, compiled.grammars, compiled.waited)
        abort_outputs = [self.loop.abort(request_id, index) for index in compiled.aborted_choices]
        return [*outputs, *(output for output in abort_outputs if output is not None)]

    def _abort(self, request_id: str, index: int | None) -> list[EngineOutput]:
        owner = self._compile_queue if request_id in self._compile_queue else self.loop
        output = owner.abort(request_id, index)
        return [] if output is None else [output]

    def _load(self) -> LoadReport:
        report, compile_queue = self.loop.load(), self._compile_queue
        return replace(
            report, waiting_requests=report.waiting_requests + len(compile_queue),
            waiting_tokens=report.waiting_tokens + compile_queue.num_tokens,
        )  # fmt: skip

    # -- from any thread -------------------------------------------------------------------------------------------

    def post(self, *commands: Command) -> bool:
        """Queue commands to run together between two steps; return False if the engine has failed."""
        if not self.creator.is_this:
            return False
        with self._awake:
            if self._dead is not None:
                return False
            self._commands.extend(commands)  # in one call: the engine thread counts them without the lock
            self._awake.notify()
        return True

    def run_command(self, function: Callable[[], T], after: Command | None = None) -> T:
        """Run a function in the engine thread between two steps, right after `after`; returns its result."""
        result: Future[T] = Future()

        def command() -> None:
            try:
                result.set_result(function())
            except Exception as error:
                result.set_exception(error)
                if isinstance(error, EngineDead) and self._dead is None:  # the runner cannot go on
                    raise

        if threading.current_thread() is self.thread:
            return function()
        if not self.post(*(() if after is None else (after,)), command):
            raise self.fatal_error or EngineDead("the engine is closed")
        while True:
            try:
                return result.result(timeout=1.0)
            except TimeoutError:
                # The engine may have ended without running the commands that were queued last.
                if self._has_ended.is_set() and not result.done():
                    raise self._dead or EngineDead("the engine is closed") from None

    # -- the engine thread -----------------------------------------------------------------------------------------

    def _run(self, started: "Future[None]") -> None:
        try:
            self.loop.start()
        except BaseException as error:
            self._dead = EngineDead(f"the engine did not start: {error}")
            self._stop_runner()
            self._has_ended.set()
            started.set_exception(error)
            return
        self._compile_queue = CompileQueue(self.loop.scheduler.config.max_queue_size)
        self.loop.watch_runner(self.post)
        started.set_result(None)
        self._work()

    def _take_over(self, niceness: int) -> None:
        """Wait until the engine has left its thread, and run it in this one."""
        lower_priority(niceness)
        thread, may_run = threading.current_thread(), threading.Event()

        def hand_over() -> None:
            self.thread = thread
            may_run.set()

        if not self.post(self._collect_in_flight, lambda: self._leave(hand_over)):
            return
        while not may_run.wait(timeout=1.0):
            if self._has_ended.is_set():
                return
        self._work(self._renew_threads)

    def _leave(self, hand_over: Command) -> None:
        self._hand_over = hand_over

    def _renew_threads(self) -> None:
        """Start the threads that compute anew, with the priority of this thread."""
        try:
            self.loop.renew_threads()
        except RuntimeError as error:
            log.warning("the threads that compute keep their priority: %s", error)

    def _work(self, begin: Command = lambda: None) -> None:
        """Run the engine until it ends or leaves this thread."""
        message = "the engine was closed"
        try:
            begin()
            self._run_loop()
            if (hand_over := self._hand_over) is not None:
                self._hand_over = None
                hand_over()
                return
        except BaseException as error:  # a native library may panic
            is_known = isinstance(error, ChairliftError)
            message = f"the engine failed: {error}" if is_known else "the engine failed with an internal error"
            log.error("the engine died: %s", error, exc_info=not isinstance(error, EngineDead))
        try:
            self._shutdown(EngineDead(message))
        finally:
            self._has_ended.set()

    def _run_loop(self) -> None:
        loop = self.loop
        while self._wait():
            for _ in range(len(self._commands)):  # only the queued ones: a flood of later ones must stop no step
                self._commands.popleft()()
                if self._hand_over is not None:
                    return
            if self._closing:
                continue
            self.deliver(self._compile_queue.expire())
            if not loop.is_idle:
                self._is_checked, self._trim_at = False, None
                self.deliver(loop.step())
                self._idle_since = time.monotonic()
            elif self._seconds_to_idle_check() == 0.0:
                self._is_checked = True
                loop.check_integrity()
                if self._grammar_compiler is not None:
                    self._build_tokenizer(self._grammar_compiler)
                self._trim_cache()
            elif self._seconds_to_trim() == 0.0:
                self._trim_cache()

    def _wait(self) -> bool:
        """Sleep while the engine is idle; returns False when it must stop."""
        with self._awake:
            while not self._closing and not self._commands and self.loop.is_idle:
                deadline = self._compile_queue.seconds_to_next_deadline()
                timeouts = (deadline, self._seconds_to_idle_check(), self._seconds_to_trim())
                if not self._awake.wait(min((each for each in timeouts if each is not None), default=None)):
                    break
            return not self._closing

    def _seconds_to_idle_check(self) -> float | None:
        """Return seconds until the integrity check of an idle engine; None after that check."""
        return None if self._is_checked else max(self._idle_since + IDLE_CHECK_SECONDS - time.monotonic(), 0.0)

    def _seconds_to_trim(self) -> float | None:
        """Return seconds until an idle engine may return memory of its cache; None where it has none to return."""
        return None if self._trim_at is None else max(self._trim_at - time.monotonic(), 0.0)

    def _trim_cache(self) -> None:
        seconds = self.loop.trim_cache()
        self._trim_at = None if seconds is None else time.monotonic() + seconds

    @staticmethod
    def _build_tokenizer(grammar_compiler: GrammarCompiler) -> None:
        """Build the tokenizer for grammars, which holds the GIL, while the engine is idle."""
        try:
            grammar_compiler.tokenizer()
        except ChairliftError as error:
            log.info("%s", error.message)

    def deliver(self, outputs: Iterable[EngineOutput]) -> None:
        """Call each sink with its outputs, all of a step at once; a final output removes its request."""
        call_sinks(self._with_sinks(outputs))

    def _with_sinks(self, outputs: Iterable[EngineOutput]) -> Iterator[tuple[OutputSink, EngineOutput]]:
        for output in outputs:
            if output.request_id not in self._open:
                continue
            sink, _ = self._open[output.request_id]
            yield sink, output
            if output.is_final:
                with self._awake:
                    del self._open[output.request_id]

    def _shutdown(self, error: EngineDead) -> None:
        """End every open request, run the pending commands, free the runner."""
        with self._awake:
            self._dead = error
            # Taken under the lock: from here on post() refuses, and no request can be added.
            still_open, self._open = self._open, {}
            commands, self._commands = self._commands, deque()
        for command in commands:
            try:
                command()
            except EngineDead as late:  # the runner failed between two steps
                log.debug("the runner failed while the engine was closing: %s", late)
            except Exception:
                log.exception("a command failed while the engine was closing")
        self._compile_queue.close()
        for sink, request in still_open.values():
            call_sinks([(sink, EngineOutput.failed(request, error))])
        if self._grammar_compiler is not None:
            self._grammar_compiler.close()  # waits for the compilation in progress
        self._stop_runner()

    def _stop_runner(self) -> None:
        try:
            self.loop.stop()
        except Exception:
            log.exception("the runner did not stop cleanly")
