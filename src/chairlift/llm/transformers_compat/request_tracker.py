"""RequestTracker: the requests of a manager from their arrival to their last output.

add ──► RequestQueue ──start──► engine ──► receive ──► ResultQueue        one lock, so a request is in one of them
"""

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence

from chairlift.core.engine_output import EngineOutput, FinishReason
from chairlift.core.errors import ChairliftError, DuplicateRequestId, EngineDead, InvalidRequest
from chairlift.core.load_report import ReplicaState
from chairlift.engine.client.inline import InlineClient
from chairlift.llm.transformers_compat.generation_output import GenerationOutput
from chairlift.llm.transformers_compat.open_request import CANCELLED, OpenRequest, open_request
from chairlift.llm.transformers_compat.request_queue import RequestQueue, WaitingRequest
from chairlift.llm.transformers_compat.request_status import RequestStatus
from chairlift.llm.transformers_compat.result_queue import ResultQueue
from chairlift.llm.transformers_compat.settings import ManagerSettings

log = logging.getLogger("ContinuousBatchingLogger")


class RequestTracker:
    """Gives each accepted request exactly one last output. Thread-safe.

    Attributes:
        changed: its lock guards everything here; it is never held while waiting for the engine. It is notified when
            a request ends or has its first output, and when the engine starts or ends.
        queue: requests that no engine has yet.
        outputs: outputs of all requests.
        settings: the options that apply to requests from now on.
        refusal: why requests are refused; None while they are accepted.
        is_starting: whether an engine starts, which will run the waiting requests.
    """

    def __init__(self, settings: ManagerSettings, model_eos: tuple[int, ...]) -> None:
        self.settings = settings
        self._model_eos = model_eos
        lock = threading.RLock()
        self.changed = threading.Condition(lock)
        self.queue = RequestQueue(settings.max_queue_size)
        self.outputs = ResultQueue(lock)
        self.refusal: ChairliftError | None = None
        self.is_starting = False
        self._engine: InlineClient | None = None
        self._abandoned: InlineClient | None = None  # the engine to close when no request is open
        self._open: dict[str, OpenRequest] = {}
        self._num_pauses = 0
        self._counter = 0
        self._sink = self._receive  # one object, so the engine calls it once a step

    @property
    def open(self) -> Mapping[str, OpenRequest]:
        """The requests that the engine runs, by id."""
        with self.changed:
            return dict(self._open)

    @property
    def is_running(self) -> bool:
        """Whether requests go to an engine that runs."""
        engine = self._engine
        return engine is not None and engine.state is ReplicaState.READY

    # -- engine ----------------------------------------------------------------------------------------------------

    def start(self, engine: InlineClient) -> None:
        """Pass the waiting requests, and those that come, to an engine."""
        with self.changed:
            self._engine = engine
            for request in self.queue.take_all():
                self._submit(request, engine)
            self.notify_all()

    def end(self) -> None:
        """Pass no more requests to the engine; none is open."""
        with self.changed:
            self._engine = None
            self.notify_all()

    def notify_all(self) -> None:
        """Wake all that wait for a change of the engine, the readers of outputs among them."""
        with self.changed:
            self.changed.notify_all()
            self.outputs.notify()

    def fail_open(self, error: ChairliftError) -> None:
        """End the open requests as failed."""
        with self.changed:
            still_open, engine = list(self._open.values()), self._engine
            self._receive([EngineOutput.failed(request.request, error) for request in still_open])
        for request in still_open:
            if engine is not None:
                engine.abort(request.request_id)

    def close(self, error: ChairliftError) -> None:
        """End the waiting requests as failed, and refuse others."""
        with self.changed:
            self.refusal = error
            for request in self.queue.take_all():
                self._deliver_unsent(request, RequestStatus.FAILED, error.message, FinishReason.ERROR)

    def close_when_none_is_open(self, engine: InlineClient) -> None:
        """Accept no more requests, and close the engine after the last output; called from the engine thread."""
        with self.changed:
            log.info("the manager has no references: its engine ends after %d open requests", len(self._open))
            self.refusal, self._abandoned = EngineDead("the manager has no references"), engine
            self._close_abandoned()

    def _close_abandoned(self) -> None:
        if self._abandoned is not None and not self._open:
            self._abandoned.close()

    def wait_until_none_is_open(self) -> None:
        """Wait for the last outputs of all open requests."""
        with self.changed:
            self.changed.wait_for(lambda: not self._open)

    def separate_cache(self) -> None:
        """Let requests from now on share no cached blocks with earlier ones: the weights change."""
        with self.changed:
            self._num_pauses += 1

    # -- requests --------------------------------------------------------------------------------------------------

    def new_id(self) -> str:
        """Return an id that no request has."""
        with self.changed:
            while True:
                request_id, self._counter = f"req_{self._counter}", self._counter + 1
                if not self._has(request_id) and not self.outputs.has(request_id):
                    return request_id

    def add(self, requests: Sequence[WaitingRequest], max_wait_seconds: float) -> None:
        """Add requests, all of them or none; one that can never be served fails.

        Raises DuplicateRequestId, queue.Full after `max_wait_seconds` without room, EngineDead without an engine that
        accepts them.
        """
        deadline = time.monotonic() + max_wait_seconds
        with self.changed:
            self._check(requests)
            self.queue.wait_for_room(self.changed, deadline, self._num_without_output)
            self._check(requests)
            for request in requests:
                if self._engine is None:
                    self.queue.put(request)
                else:
                    self._submit(request, self._engine)

    def cancel(self, request_ids: Iterable[str]) -> None:
        """End requests as cancelled; ids that are not open have no effect."""
        with self.changed:
            for request_id in request_ids:
                waiting = self.queue.remove(request_id)
                if waiting is not None:
                    self._deliver_unsent(waiting, RequestStatus.CANCELLED, CANCELLED, FinishReason.ABORT)
                elif request_id in self._open and self._engine is not None:
                    self._engine.abort(request_id)

    def can_come(self, request_id: str | None) -> bool:
        """Return whether an output may still come, of one request where it is named. The caller holds the lock."""
        if request_id is None:
            return self.is_running or self.is_starting or bool(self._open)
        return request_id in self._open or ((self.is_running or self.is_starting) and request_id in self.queue)

    def _has(self, request_id: str) -> bool:
        return request_id in self._open or request_id in self.queue

    def _check(self, requests: Sequence[WaitingRequest]) -> None:
        if self.refusal is not None:
            raise self.refusal
        if self._engine is not None and not self.is_running:
            raise self._engine.fatal_error or EngineDead("the engine of the manager has ended; call start() again")
        for request in requests:
            if self._has(request.request_id):
                raise DuplicateRequestId(request.request_id)

    def _num_without_output(self) -> int:
        return len(self.queue) + sum(request.status is RequestStatus.PENDING for request in self._open.values())

    def _submit(self, request: WaitingRequest, engine: InlineClient) -> None:
        """Pass a request to the engine; one that can never be served fails."""
        salt = f"pause {self._num_pauses}" if self._num_pauses else ""
        try:
            opened = open_request(request, self.settings, engine.limits, self._model_eos, salt)
        except InvalidRequest as error:
            self._deliver_unsent(request, RequestStatus.FAILED, error.message, FinishReason.ERROR)
            return
        except (TypeError, ValueError, OverflowError) as error:
            self._deliver_unsent(request, RequestStatus.FAILED, f"invalid request: {error}", FinishReason.ERROR)
            return
        self._open[request.request_id] = opened
        try:
            engine.submit(opened.validated, self._sink)
        except ChairliftError as error:
            self._receive([EngineOutput.failed(opened.request, error)])

    def _deliver_unsent(self, request: WaitingRequest, status: RequestStatus, error: str, reason: FinishReason) -> None:
        self.outputs.deliver([GenerationOutput(
            request.request_id, request.input_ids, error=error, status=status, finish_reason=str(reason),
            created_time=request.created_time, lifespan=(-1.0, time.perf_counter()),
            timestamps=[] if request.record_timestamps else None,
        )])  # fmt: skip

    def _receive(self, outputs: list[EngineOutput]) -> None:
        """Deliver the engine's outputs; called from the engine thread."""
        with self.changed:
            delivered: list[GenerationOutput] = []
            is_changed = False
            for output in outputs:
                request = self._open.get(output.request_id)
                if request is None:
                    continue
                status = request.status
                made = request.process(output)
                is_changed = is_changed or request.status is not status
                if made is not None:
                    delivered.append(made)
                if output.is_final:
                    del self._open[output.request_id]
            self.outputs.deliver(delivered)
            if is_changed:
                self.changed.notify_all()
            self._close_abandoned()
            if not self._open and not self.is_running:
                self.outputs.notify()
