"""ContinuousBatchProcessor: steps an engine by hand under the names of transformers' processor, or shows a running one.

while processor.prepare_next_batch():     intake, schedule
    processor._generation_step(model)     launch
    processor.update_batch()              collect, commit, deliver
"""

import queue
import random
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

from chairlift.core.engine_output import EngineOutput, FinishReason
from chairlift.core.errors import ChairliftError, ConfigError, EngineDead, InvalidRequest, RequestFailed
from chairlift.engine.client import engine_thread_calls
from chairlift.engine.client.inline import InlineClient
from chairlift.engine.engine_loop import EngineLoop
from chairlift.engine.request_validation import validate_request
from chairlift.engine.scheduler.scheduler import Scheduler
from chairlift.engine.step_plan import StepPlan
from chairlift.llm.build_from_module import start_module_loop
from chairlift.llm.transformers_compat.cache import LayerLayout, PagedAttentionCache
from chairlift.llm.transformers_compat.option_names_in_errors import ENGINE_LIMITS, with_given_names
from chairlift.llm.transformers_compat.request_state import RequestState
from chairlift.llm.transformers_compat.request_status import RequestStatus
from chairlift.llm.transformers_compat.result_queue import ResultQueue
from chairlift.llm.transformers_compat.scheduler_view import SchedulerView
from chairlift.llm.transformers_compat.schedulers import BatchScheduler
from chairlift.llm.transformers_compat.settings import resolve_settings

T = TypeVar("T")

ARGUMENTS = (
    "cache", "config", "generation_config", "continuous_batching_config", "logit_processor", "input_queue",
    "cancel_queue", "output_router", "background_thread_status", "model_device", "model_dtype", "scheduler",
    "distributed_helper",
)  # fmt: skip
"""Arguments of transformers' processor, in their order."""
OLDER_ARGUMENTS = (
    "cache", "config", "generation_config", "input_queue", "output_queue", "stop_event", "model_device", "model_dtype",
    "scheduler", "streaming", "manual_eviction",
)  # fmt: skip
"""Those of older versions, whose fourth argument is the queue."""

_ENDS = {FinishReason.ERROR: RequestStatus.FAILED, FinishReason.ABORT: RequestStatus.CANCELLED}


class ContinuousBatchProcessor:
    """An engine that a caller steps: its own Scheduler, KV cache and runner. Not thread-safe.

    `of_client` makes one that shows the engine of a manager, which its own thread steps; that one may be read from any
    thread, also after the engine has ended.

    Attributes:
        input_queue: RequestStates that the next prepare_next_batch() takes.
        cancel_queue: ids of requests that it cancels.
        output_router: gets the outputs: a ResultQueue, or an object with deliver_batch() or put().
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Create a processor.

        Args:
            arguments: an EngineLoop that has started; or the arguments of transformers' processor in their order, of
                which `cache` (a PagedAttentionCache) and `scheduler` (of the same cache) are needed, and
                generation_config, continuous_batching_config, input_queue, cancel_queue and output_router are used.
                `output_queue` is an older name of the last one. The others are accepted.
            options: the same by name.

        Raises ConfigError for a missing or unknown argument, or a configuration that cannot be used.
        """
        given = _named(arguments, options)
        # Compared with None: an empty queue may be false, and its owner puts the requests into this one.
        inputs, cancelled = given.get("input_queue"), given.get("cancel_queue")
        self.input_queue: Any = queue.Queue() if inputs is None else inputs
        self.cancel_queue: Any = queue.Queue() if cancelled is None else cancelled
        router = given.get("output_router")
        self.output_router: Any = given.get("output_queue") if router is None else router
        if self.output_router is None:
            self.output_router = ResultQueue()
        self._client: InlineClient | None = None
        self._loop: EngineLoop | None = None
        self._states: dict[str, RequestState] = {}
        self._plan: StepPlan | None = None
        self._scheduled_at = 0.0
        self._outputs: list[EngineOutput] = []
        cache = given["cache"]
        if isinstance(cache, EngineLoop):
            self._loop = cache
            self._scheduler: Scheduler = cache.scheduler
            self.scheduler: Any = SchedulerView(lambda function: function(self._scheduler), self.cancel_queue.put)
            self.cache = PagedAttentionCache(self._scheduler.cache)
        else:
            self._scheduler = self.scheduler = scheduler = _scheduler_of(given)
            self.cache = scheduler.paged_cache
            self._states = scheduler.states
            scheduler.settings = resolve_settings(
                given.get("generation_config"), given.get("continuous_batching_config")
            )
            if scheduler.settings.seed is not None:
                scheduler.seeds = random.Random(scheduler.settings.seed)
        self.max_batch_tokens = self._scheduler.config.max_batch_tokens

    @classmethod
    def of_client(cls, client: InlineClient) -> "ContinuousBatchProcessor":
        """Return a processor that shows a running engine; it cannot be stepped by hand."""
        processor = cls(client.loop)
        processor._client, processor._loop = client, None
        processor.scheduler = SchedulerView(
            lambda function: processor.inspect(lambda loop: function(loop.scheduler)), client.abort
        )
        processor.cache = PagedAttentionCache.of_engine(
            client.loop.scheduler.cache, lambda function: processor.inspect(lambda _: function()),
            processor.max_batch_tokens,
        )  # fmt: skip
        return processor

    @property
    def client(self) -> InlineClient | None:
        """The running engine that it shows; None for a processor that is stepped by hand."""
        return self._client

    @property
    def output_queue(self) -> Any:
        """The outputs; an older name of output_router."""
        return self.output_router

    def inspect(self, function: Callable[[EngineLoop], T]) -> T:
        """Call a function with the engine's loop between two steps; returns its result.

        Raises RuntimeError before the first step of a processor without a model.
        """
        if self._client is not None:
            return engine_thread_calls.inspect(self._client, function)
        if self._loop is None:
            raise RuntimeError("the processor has no model before its first step")
        return function(self._loop)

    # -- a step ----------------------------------------------------------------------------------------------------

    def prepare_next_batch(self) -> bool:
        """Take new and cancelled requests and schedule the next batch; return whether there is one.

        A request that can never be served has a failed output. Raises RuntimeError for a running engine.
        """
        self._check_steps()
        if self._plan is not None:
            return True
        for state in _drain(self.input_queue):
            self._add(state)
        self._cancel(_drain(self.cancel_queue))
        now = time.monotonic() if self._loop is None else self._loop.now()
        self._apply(self._scheduler.expire(now))
        self._scheduled_at = time.perf_counter()
        self._plan = self._scheduler.schedule(now)
        if self._plan is None:
            return False
        for row in self._scheduler.in_flight_steps[-1].rows:
            state = self._states.get(row.sequence.request_id)
            if state is not None:
                state.follow(row.sequence, row.start, row.end, is_sampled=row.sample >= 0)
        return True

    def _generation_step(self, model: Any = None, *_: Any) -> None:
        """Run the batch. The first step of a processor without an engine needs the model, whose parameters are shared.

        A request at which the model fails has a failed output. Raises ModelError for a model that cannot run.
        """
        self._check_steps()
        plan, self._plan = self._plan, None
        if plan is None:
            return
        if self._loop is None:
            try:
                self._loop = self._start(model)
            except BaseException:
                self._scheduler.rollback(plan)
                raise
        self._outputs += self._loop.launch(plan, self._scheduled_at)

    def update_batch(self) -> None:
        """Add the tokens of the batch to its requests, and deliver outputs of those that stream or have ended."""
        self._check_steps()
        outputs, self._outputs = self._outputs, []
        while self._loop is not None and self._plan is None and self._scheduler.in_flight_steps:
            outputs += self._loop.collect()
        self._apply(outputs)

    def has_pending_requests(self) -> bool:
        """Return whether a request is open; those in the input queue are not yet."""
        return bool(self.scheduler.has_pending_requests())

    def fail_all_requests(self, error: Exception) -> None:
        """End every open request with an error; each has a failed output."""
        cause = error if isinstance(error, ChairliftError) else RequestFailed(str(error) or type(error).__name__)
        if self._client is not None:
            engine_thread_calls.fail_all(self._client, cause)
            return
        plan, self._plan = self._plan, None
        if plan is not None:
            self._scheduler.rollback(plan)
        self._apply(self._scheduler.table.fail_all(cause, time.monotonic() if self._loop is None else self._loop.now()))
        for state in _drain(self.input_queue):
            self._fail(state, cause.message)

    def warmup(self, model: Any = None) -> None:
        """Run the largest steps once, so that no request is slowed by first-use costs."""
        if self._client is not None:
            self._client.warmup()
            return
        if self._loop is None:
            self._loop = self._start(model)
        self._loop.warmup()

    def close(self) -> None:
        """Fail the open requests, stop the runner and drop cached prefixes.

        A processor of a cache starts another runner with its next step. Raises RuntimeError for a running engine.
        """
        self._check_steps()
        self.fail_all_requests(EngineDead("the processor was closed"))
        if self._loop is not None:
            self._loop.stop()
        self._scheduler.cache.evict_all()
        if isinstance(self._scheduler, BatchScheduler):
            self._loop = None

    def _check_steps(self) -> None:
        if self._client is not None:
            _refuse_step()

    def _start(self, model: Any) -> EngineLoop:
        if model is None:
            raise ConfigError("the first step of a processor needs the model: _generation_step(model)", option="model")
        started = start_module_loop(model, self._scheduler)
        self.cache.use_tensors(
            started.tensors, LayerLayout(started.places, started.num_kv_heads, started.head_dim)
        )  # fmt: skip
        return started.loop

    # -- requests --------------------------------------------------------------------------------------------------

    def _add(self, state: RequestState) -> None:
        try:
            if isinstance(self._scheduler, BatchScheduler):
                self._scheduler.add_waiting_request(state)
                return
            assert self._loop is not None, "a plain scheduler belongs to a loop"
            for each in (state, *state.children()):
                request = validate_request(each.to_request(self._loop.limits), self._loop.limits)
                if each.request_id in self._states:
                    raise InvalidRequest(f"request {each.request_id!r} is open already", param="request_id")
                self._states[each.request_id] = each
                self._apply(self._loop.submit(request))
        except ChairliftError as error:
            self._fail(state, error.message)

    def _fail(self, state: RequestState, message: str) -> None:
        state.status, state.finish_reason = RequestStatus.FAILED, str(FinishReason.ERROR)
        state.error = with_given_names(message, ENGINE_LIMITS)
        self._deliver([state])

    def _cancel(self, names: list[str]) -> None:
        if isinstance(self._scheduler, BatchScheduler):
            for name in names:
                self._scheduler.set_request_cancellation(name)
            self._deliver(self._scheduler.clear_cancelled_requests())
            return
        assert self._loop is not None, "a plain scheduler belongs to a loop"
        outputs = [self._loop.abort(name) for name in names]
        self._apply([output for output in outputs if output is not None])

    def _apply(self, outputs: Iterable[EngineOutput]) -> None:
        """Add the engine's outputs to the states, and deliver those that stream or have ended."""
        changed: list[RequestState] = []
        for output in outputs:
            state = self._states.get(output.request_id)
            if state is None:
                continue
            state.extend(output.token_ids, [entry.logprob for entry in output.logprobs])
            if output.is_final:
                self._end(state, output)
            elif output.token_ids:
                state.status = RequestStatus.DECODING
            if output.is_final or (state.streaming and output.token_ids):
                changed.append(state)
        self._deliver(changed)

    def _end(self, state: RequestState, output: EngineOutput) -> None:
        reason = output.finish_reason or FinishReason.ERROR
        state.finish_reason, state.error = str(reason), None if output.error is None else output.error.message
        state.status = _ENDS.get(reason, RequestStatus.FINISHED)
        if output.usage is not None:
            state.num_cached_tokens = output.usage.cached_tokens
        if isinstance(self._scheduler, BatchScheduler):
            self._scheduler.forget(state.request_id)
        else:
            del self._states[state.request_id]

    def _deliver(self, states: Iterable[RequestState]) -> None:
        outputs, router = [state.to_generation_output() for state in states], self.output_router
        if isinstance(router, ResultQueue):
            router.deliver(outputs)
        elif hasattr(router, "deliver_batch"):
            if outputs:
                router.deliver_batch(outputs)
        else:
            for output in outputs:
                router.put(output)

    def __repr__(self) -> str:
        kind = "a running engine" if self._client is not None else "stepped by hand"
        return f"ContinuousBatchProcessor({kind}, {self.cache.num_blocks} blocks of {self.cache.block_size} tokens)"


def _refuse_step() -> NoReturn:
    raise RuntimeError(
        "the engine's own thread runs the steps of this processor; make a ContinuousBatchProcessor of your own to step "
        "by hand"
    )


def _named(arguments: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments by name. Raises ConfigError."""
    names = OLDER_ARGUMENTS if len(arguments) > 3 and hasattr(arguments[3], "get_nowait") else ARGUMENTS
    if len(arguments) > len(names):
        raise ConfigError(f"a processor has at most {len(names)} arguments, got {len(arguments)}", option="cache")
    given = {**dict(zip(names, arguments, strict=False)), **options}
    if unknown := sorted(set(given) - {*ARGUMENTS, *OLDER_ARGUMENTS}):
        raise ConfigError(f"a processor has no argument {unknown[0]!r}", option=unknown[0])
    if not isinstance(given.get("cache"), EngineLoop | PagedAttentionCache):
        raise ConfigError("a processor needs a PagedAttentionCache, or an EngineLoop that has started", option="cache")
    return given


def _scheduler_of(given: dict[str, Any]) -> BatchScheduler:
    scheduler, cache = given.get("scheduler"), given["cache"]
    if not isinstance(scheduler, BatchScheduler):
        raise ConfigError("a processor needs a FIFOScheduler or a PrefillFirstScheduler", option="scheduler")
    if scheduler.cache is not cache.manager:
        raise ConfigError("the scheduler of a processor must have the same cache", option="scheduler")
    return scheduler


def _drain(source: Any) -> list[Any]:
    """Return what a queue holds now."""
    items = []
    while True:
        try:
            items.append(source.get_nowait())
        except queue.Empty:
            return items
