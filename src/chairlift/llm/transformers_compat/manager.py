"""ContinuousBatchingManager: transformers' manager of this name, over Chairlift's engine.

add_request ──► input_queue ──start──► engine ──► ResultQueue ──► get_result, iteration, handlers
"""

import asyncio
import logging
import random
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from chairlift.core.errors import EngineDead
from chairlift.engine.client.creator_process import CreatorProcess
from chairlift.engine.client.inline import InlineClient
from chairlift.llm.transformers_compat.continuous_batch_processor import ContinuousBatchProcessor
from chairlift.llm.transformers_compat.engine_as_processor import EngineAsProcessor
from chairlift.llm.transformers_compat.engine_source import EngineSource, engine_source
from chairlift.llm.transformers_compat.generation_output import GenerationOutput
from chairlift.llm.transformers_compat.logit_processor_list_view import LogitProcessorListView
from chairlift.llm.transformers_compat.managed_engine import ManagedEngine
from chairlift.llm.transformers_compat.open_request import OpenRequest
from chairlift.llm.transformers_compat.pause import paused
from chairlift.llm.transformers_compat.prompt_token_ids import plain_ids, plain_prompts
from chairlift.llm.transformers_compat.request_queue import RequestQueue, WaitingRequest
from chairlift.llm.transformers_compat.request_tracker import RequestTracker
from chairlift.llm.transformers_compat.result_queue import ResultHandler, ResultQueue
from chairlift.llm.transformers_compat.settings import ManagerSettings

log = logging.getLogger("ContinuousBatchingLogger")

FULL_QUEUE_SECONDS = 10.0
"""How long add_request waits for room in a full queue, as in transformers."""

STOPPED = "the manager was stopped"

KEPT = "_cached_continuous_batching_manager"
"""Attribute of a model with the manager that was kept for the next session."""


class ContinuousBatchingManager:
    """Runs generation requests of one model, which is shared, in continuous batches.

    Every accepted request has one last output: finished, failed with its reason in `error`, or cancelled. A request
    that cannot be served fails alone. The engine of a manager without references finishes the open requests and ends.
    Thread-safe. In a fork of the process that started it, a manager raises EngineDead; stop() and destroy() leave the
    engine of that process alone.

    Attributes:
        num_return_sequences: outputs of each later request.
        logit_processor: names of the parameters that change the logits of requests without their own.
        generation_config: as given.
        continuous_batching_config: as given.
        output_queue: outputs without a handler that were not read.
        stop_event: set while the manager accepts no requests because it stops or has stopped.
        warmed_up: whether warmup() has run.
    """

    def __init__(
        self, model: Any, generation_config: Any = None, continuous_batching_config: Any = None,
        workload_hints: Any = None, **knobs: Any,
    ) -> None:  # fmt: skip
        """Prepare a manager; start() loads a model folder and starts the engine.

        Args:
            model: a loaded model of transformers, whose parameters are shared, or a model folder or hub id.
            generation_config: transformers' GenerationConfig or a mapping; None for the model's own.
            continuous_batching_config: transformers' ContinuousBatchingConfig, the one here, or a mapping.
            workload_hints: accepted and not needed.
            knobs: single options of both configurations, and the engine's; see docs/from-transformers.md.

        Raises ModelError, ConfigError and UnknownOption.
        """
        source = engine_source(model, generation_config, continuous_batching_config, knobs)
        self._set_up(source, model, generation_config, continuous_batching_config)

    @classmethod
    def from_source(cls, source: EngineSource, model: Any = None) -> Self:
        """Make a manager of a source (tests, engines without a model)."""
        manager = cls.__new__(cls)
        manager._set_up(source, model, None, None)
        return manager

    def _set_up(
        self, source: EngineSource, model: Any, generation_config: Any, continuous_batching_config: Any
    ) -> None:  # fmt: skip
        self.model = model
        self.generation_config = generation_config
        self.continuous_batching_config = continuous_batching_config
        self._requests = RequestTracker(source.settings, source.eos_token_ids)
        self._engine = ManagedEngine(source, model, self._requests)
        self._shown_engine = EngineAsProcessor()
        self.num_return_sequences = source.settings.num_return_sequences
        self.logit_processor = LogitProcessorListView(self._requests)
        self.output_queue = self._requests.outputs
        self.stop_event = threading.Event()
        self.warmed_up = False
        self._seeds = random.SystemRandom() if self.settings.seed is None else random.Random(self.settings.seed)
        self._changed = self._requests.changed  # its lock guards everything below
        self._is_started = self._is_loading = False
        self._keeps_engine = self._is_hard_stop = False
        self._stopper: threading.Thread | None = None
        self._creator: CreatorProcess | None = None  # of the engine, from the call that starts it until it has ended

    # -- life ------------------------------------------------------------------------------------------------------

    def warmup(self) -> None:
        """Start the engine if it does not run, and run its largest steps once. Raises ModelError, ConfigError."""
        self._check_not_forked()
        self._engine.pauses.check_not_held("warmup()")
        self._creator = self._creator or CreatorProcess()
        self._engine.start().warmup()
        self.warmed_up = True

    def is_running(self) -> bool:
        """Return whether the engine runs: it was started, and has neither stopped nor failed."""
        return self._requests.is_running

    def start(self) -> None:
        """Start the engine, which runs the requests that were added already. Raises ModelError, ConfigError."""
        self._check_not_forked()
        with self._changed:
            self._changed.wait_for(lambda: self._stopper is None)
            if self.is_running() or self._is_loading:
                log.warning("Manager thread is already running.")
                return
            self._creator = self._creator or CreatorProcess()
            self._is_started = self._is_loading = self._requests.is_starting = True
            self._requests.refusal = None
            self.stop_event.clear()
        try:
            is_kept = self._engine.client is not None
            client = self._engine.start()
            if is_kept and hasattr(self.model, "parameters"):  # they may have changed since the last session
                self._engine.check_parameters()
                with client.paused():
                    self._requests.separate_cache()
        except BaseException:
            with self._changed:
                self._is_started = self._is_loading = self._requests.is_starting = False
                self._creator = None if self._engine.client is None else self._creator
                self._requests.notify_all()
            raise
        with self._changed:
            self._is_loading = self._requests.is_starting = False
            self._requests.start(client)

    def stop(
        self, block: bool = True, timeout: float | None = None, keep_for_next_session: bool = False,
        hard_stop: bool = False,
    ) -> None:  # fmt: skip
        """Accept no more requests, finish the open ones, then stop the engine.

        Args:
            block: whether to wait for the end.
            timeout: seconds to wait at most; the engine stops later by itself then. None waits until the end.
            keep_for_next_session: keep the engine and its cache for the next start().
            hard_stop: fail the open requests instead of finishing them.

        Raises RuntimeError inside a pause() of the same thread.
        """
        if self._is_forked:
            return
        self._engine.pauses.check_not_held("stop()")
        with self._changed:
            if not self._is_started and self._engine.client is None:
                log.warning("Manager not started.")
                return
            self.stop_event.set()
            self._requests.refusal = EngineDead("the manager was stopped and accepts no requests; call start() first")
            self._keeps_engine = keep_for_next_session
            self._is_hard_stop = self._is_hard_stop or hard_stop
            if self._stopper is None:
                self._stopper = threading.Thread(target=self._finish, name="chairlift-stop", daemon=True)
                self._stopper.start()
            elif hard_stop and not self._is_loading:
                self._requests.fail_open(EngineDead(STOPPED))
            self._keep_on_model(keep_for_next_session)
        if block:
            self.join(time.perf_counter(), timeout)

    def join(self, stop_trigger_time: float | None = None, timeout: float | None = None) -> None:
        """Wait for the end that stop() has begun, `timeout` seconds at most."""
        stopper = self._stopper
        if stopper is None or self._is_forked:
            return
        stopper.join(timeout)
        if stopper.is_alive():
            log.warning("Generation thread did not exit after join timeout (%s).", timeout)
        elif stop_trigger_time is not None:
            log.info("Background generation thread stopped after %.2fs.", time.perf_counter() - stop_trigger_time)

    def destroy(self) -> None:
        """Stop the manager and free its engine. May be called more than once."""
        if self._is_forked:
            self._keep_on_model(False)
            return
        if self._is_started:
            self.stop(block=True)
        self._requests.close(EngineDead(STOPPED))
        with self._changed:
            client = self._engine.take()
            self._keep_on_model(False)
            self._creator = None
        if client is not None:
            client.close()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Hold the engine between two steps while the context is open, so that weights can be changed in place.

        Several threads may hold it; the engine goes on when the last one leaves. Open requests stay open; later ones
        share no cached blocks with earlier ones. Raises RuntimeError when the engine does not run, and at the end
        where a parameter was replaced instead of changed in place.
        """
        self._check_not_forked()
        client = self._engine.client
        if not self.is_running() or client is None:
            cause = None if client is None else client.fatal_error
            raise RuntimeError("generation cannot be paused while no engine is running; call start() first") from cause
        with self._engine.pauses.hold(lambda: paused(client)):
            self._requests.separate_cache()
            yield
        self._engine.check_parameters()

    def _finish(self) -> None:
        """Wait for the open requests or fail them, then stop the engine; runs in a thread of its own."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_loading)
        if self._is_hard_stop:
            self._requests.fail_open(EngineDead(STOPPED))
        self._requests.wait_until_none_is_open()
        self._requests.end()
        with self._changed:
            keeps_engine = self._keeps_engine
            client = self._engine.client if keeps_engine else self._engine.take()
            if not keeps_engine:
                self.warmed_up = False
        if client is not None:
            client.load() if keeps_engine else client.close()  # load() returns when the engine has aborted requests
        with self._changed:
            self._is_started = self._is_hard_stop = False
            self._stopper = None
            if not keeps_engine:
                self._creator = None
            self._changed.notify_all()

    @property
    def _is_forked(self) -> bool:
        """Whether this is a fork of the process that started the engine: its threads do not run here."""
        return self._creator is not None and not self._creator.is_this

    def _check_not_forked(self) -> None:
        """Raise EngineDead in a fork, before a lock is taken that may be held for ever."""
        if self._creator is not None:
            self._creator.check()

    def _keep_on_model(self, keep: bool) -> None:
        """Set or remove the model's attribute from which init_continuous_batching takes the next manager."""
        attributes = getattr(self.model, "__dict__", {})
        if keep:
            attributes[KEPT] = self
        elif attributes.get(KEPT) is self:
            del attributes[KEPT]

    # -- requests --------------------------------------------------------------------------------------------------

    def add_request(
        self, input_ids: Sequence[int], request_id: str | None = None, max_new_tokens: int | None = None,
        streaming: bool = False, record_timestamps: bool = False, eos_token_id: int | list[int] | None = None, *,
        timeout: float | None = None, priority: int = 0, **sampling: Any,
    ) -> str:  # fmt: skip
        """Add a request; return its id. Before start() it waits in the input queue.

        Args:
            input_ids: token ids of the prompt; a list, an array or a tensor.
            request_id: its id; None for a new one.
            max_new_tokens: output tokens at most; None for the manager's limit, or as many as there is room for.
            streaming: whether each new token has an output.
            record_timestamps: whether outputs have the time of each token.
            eos_token_id: token ids that end the output; None for the manager's, or the model's.
            timeout: seconds that it may take; None for no limit.
            priority: a smaller one runs first, with scheduling_policy "priority".
            sampling: its own sampling parameters: temperature (0 is greedy), do_sample, top_k, top_p, seed ...

        A request that can never be served has one output, whose `error` says why. Raises DuplicateRequestId for an id
        that is open, queue.Full after 10 s without room in the queue (at once in an event loop, which must not wait),
        EngineDead when the manager was stopped or its engine has failed, and TypeError for what is not a token id or a
        flag.
        """
        self._check_not_forked()
        if request_id is None:
            request_id = self._requests.new_id()
        if not isinstance(request_id, str):
            raise TypeError(f"request_id must be a str, got {type(request_id).__name__}")
        for flag, value in (("streaming", streaming), ("record_timestamps", record_timestamps)):
            if not isinstance(value, bool):
                raise TypeError(f"{flag} must be true or false, got {type(value).__name__}")
        prompt, requests = plain_ids(input_ids), []
        for index, name in enumerate(self._names(request_id)):
            own = dict(sampling)
            if index and hasattr(own.get("seed"), "__index__"):
                own["seed"] = int(own["seed"]) + index  # so that the sequences of a prompt differ
            requests.append(WaitingRequest(
                name, prompt, max_new_tokens, streaming, record_timestamps, eos_token_id, timeout, priority, own,
                self._seeds.getrandbits(63),
            ))  # fmt: skip
        self._requests.add(requests[::-1], 0.0 if _is_in_event_loop() else FULL_QUEUE_SECONDS)
        return request_id

    def add_requests(
        self, inputs: Sequence[Sequence[int]], max_new_tokens: int | None = None, streaming: bool = False,
        record_timestamps: bool = False, **options: Any,
    ) -> list[str]:  # fmt: skip
        """Add several requests with the same options; return their ids in the order of the prompts.

        After an exception those that were added are cancelled.
        """
        added: list[str] = []
        try:
            for each in plain_prompts(inputs):
                added.append(self.add_request(
                    each, None, max_new_tokens, streaming=streaming, record_timestamps=record_timestamps, **options
                ))  # fmt: skip
        except BaseException:
            for request_id in added:
                self.cancel_request(request_id)
            raise
        return added

    def cancel_request(self, request_id: str) -> None:
        """End a request; its last output has the status CANCELLED. Does nothing for a request that is not open."""
        if not self._is_forked:
            self._requests.cancel(self._names(request_id))

    def _names(self, request_id: str) -> list[str]:
        """Return the ids of the sequences of a request: its own first, then those of the others."""
        return [request_id, *(f"{request_id}__child#{at}" for at in range(self.num_return_sequences - 1))]

    # -- results ---------------------------------------------------------------------------------------------------

    def get_result(self, request_id: str | None = None, timeout: float | None = None) -> GenerationOutput | None:
        """Return the oldest output that was not read, of one request where it is named.

        Returns None after `timeout` seconds, and as soon as no such output can come any more. Raises RuntimeError
        without a timeout inside a pause() of the same thread.
        """
        self._check_not_forked()
        if timeout is None:
            self._engine.pauses.check_not_held("get_result()")
        return self.output_queue.read(request_id, timeout, lambda: self._requests.can_come(request_id))

    def __iter__(self) -> Iterator[GenerationOutput]:
        """Yield outputs as they come, until the manager stops and all are read."""
        while (output := self.get_result()) is not None:
            yield output

    def request_id_iter(self, request_id: str) -> Generator[GenerationOutput, None, None]:
        """Yield the outputs of one request as they come, the last one included."""
        while (output := self.get_result(request_id)) is not None:
            yield output
            if output.is_finished():
                return

    def register_result_handler(self, request_id: str, callback: ResultHandler) -> None:
        """Call `callback` in the running event loop with each output of a request, also with those that wait unread.

        It may be registered before the request is added. It is forgotten after the last output.
        Raises RuntimeError outside of an event loop.
        """
        self._check_not_forked()
        self.output_queue.register(request_id, callback, asyncio.get_running_loop())

    # -- state -----------------------------------------------------------------------------------------------------

    @property
    def input_queue(self) -> RequestQueue:
        """The requests that were added before start()."""
        return self._requests.queue

    @property
    def settings(self) -> ManagerSettings:
        """The options that apply."""
        return self._requests.settings

    @property
    def batch_processor(self) -> ContinuousBatchProcessor | None:
        """The engine, for readers of its scheduler and cache; None while there is none."""
        return self._shown_engine.processor(self._engine.client)

    @property
    def last_batch_processor(self) -> ContinuousBatchProcessor | None:
        """The engine that was shown last, for debuggers; it may have ended."""
        return self._shown_engine.processor(self._engine.client) or self._shown_engine.last

    @property
    def output_router(self) -> ResultQueue:
        """The output queue, which is also what passes outputs to their handlers."""
        return self.output_queue

    @property
    def current_batch(self) -> int:
        """The number of steps that the engine has run."""
        return self._shown_engine.num_steps(self._engine.client)

    @property
    def client(self) -> InlineClient | None:
        """The engine; None while there is none."""
        return self._engine.client

    @property
    def open_requests(self) -> Mapping[str, OpenRequest]:
        """The requests without a last output, by id."""
        self._check_not_forked()
        return self._requests.open


def _is_in_event_loop() -> bool:
    """Return whether an event loop runs in this thread, which must not wait."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
