"""drive_workload: submits a workload to the text service at its arrival times (open loop) and records token times.

All requests are checked before the first is submitted. Each is submitted at its arrival time, whether or not earlier
ones have finished. The main thread detokenizes the outputs while the engine runs.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from chairlift.bench.offline.request_records import RequestRecord
from chairlift.bench.workload.workload import Workload, WorkloadRequest
from chairlift.core.engine_output import EngineOutput
from chairlift.core.errors import EngineDead, InvalidRequest, QueueFull
from chairlift.core.sampling_params import SamplingParams
from chairlift.llm.batch_run import FULL_QUEUE_PAUSE, forward_aborts
from chairlift.llm.output_processor import OutputProcessor
from chairlift.llm.text_service import TextService

ProgressCallback = Callable[[int, bool], None]
"""Called with the number of new tokens of an output, and whether it is the request's last."""


@dataclass(frozen=True, slots=True)
class DriveResult:
    """The result of a finished run.

    Attributes:
        records: one for each request, in the order of the workload.
        seconds: from the start until the last output was detokenized.
        started_at: the start, by time.perf_counter().
    """

    records: Sequence[RequestRecord]
    seconds: float
    started_at: float


def drive_workload(service: TextService, workload: Workload, note: ProgressCallback | None = None) -> DriveResult:
    """Run a workload until every request has ended, greedily and to each request's full length.

    Token times are taken in the engine's output callback. An exception aborts all open requests. A request that fails
    is counted and raises nothing.

    Raises InvalidRequest, before any request is submitted, when one can never be served; the message names it.
    """
    processors = [_output_processor(service, number, item) for number, item in enumerate(workload.items)]
    run = _WorkloadRun(
        service, [RequestRecord(item) for item in workload.items], processors, note or (lambda tokens, ended: None)
    )
    try:
        run.run_to_end()
    finally:
        for request_id in run.open_requests:
            service.client.abort(request_id)
    return DriveResult(run.records, time.perf_counter() - run.started_at, run.started_at)


def _output_processor(service: TextService, number: int, item: WorkloadRequest) -> OutputProcessor:
    params = SamplingParams(
        temperature=0.0, max_tokens=item.output_tokens, ignore_eos=True, seed=0, structured=item.structured
    )
    try:
        return service.prepare_completion(
            item.prompt_token_ids, params, priority=item.priority, tenant=item.tenant, timeout=item.timeout
        )
    except InvalidRequest as error:
        raise InvalidRequest(f"request {number} of the workload: {error.message}", **error.details) from None


class _WorkloadRun:
    """The state of one run."""

    def __init__(
        self,
        service: TextService,
        records: list[RequestRecord],
        processors: list[OutputProcessor],
        note: ProgressCallback,
    ) -> None:
        self.records = records
        self.open_requests: dict[str, tuple[RequestRecord, OutputProcessor]] = {}
        self._client = service.client
        self._window = service.max_queue_size
        self._awaiting_output: set[str] = set()  # submitted without output yet: may be in the engine's waiting queue
        self._unsent = deque(zip(records, processors, strict=True))
        self._outputs: SimpleQueue[tuple[float, list[EngineOutput]]] = SimpleQueue()
        self._on_progress = note
        self.started_at = time.perf_counter()

    def run_to_end(self) -> None:
        while self._unsent or self.open_requests:
            self._submit_due_requests()
            try:
                stamp, outputs = self._outputs.get(timeout=self._seconds_until_next_submit())
            except Empty:
                continue
            for output in outputs:
                self._handle_output(output, stamp)

    def _sink(self, outputs: list[EngineOutput]) -> None:
        self._outputs.put((time.perf_counter() - self.started_at, outputs))

    def _may_send(self) -> bool:
        return bool(self._unsent) and len(self._awaiting_output) < self._window

    def _seconds_until_next_submit(self) -> float | None:
        """Return the seconds until a request is due, None if none may be sent before an output."""
        if not self._may_send():
            return None
        return max(0.0, self._unsent[0][0].item.at - (time.perf_counter() - self.started_at))

    def _submit_due_requests(self) -> None:
        while self._may_send() and self._unsent[0][0].item.at <= time.perf_counter() - self.started_at:
            record, processor = self._unsent.popleft()
            request = processor.request
            self.open_requests[request.request_id] = (record, processor)
            self._awaiting_output.add(request.request_id)
            try:
                self._client.submit(processor.validated, self._sink)
            except EngineDead as error:
                self._sink([EngineOutput.failed(request, error)])

    def _handle_output(self, output: EngineOutput, stamp: float) -> None:
        record, processor = self.open_requests[output.request_id]
        self._awaiting_output.discard(output.request_id)
        if isinstance(output.error, QueueFull):
            del self.open_requests[output.request_id]
            self._unsent.appendleft((record, processor))
            time.sleep(FULL_QUEUE_PAUSE)
            return
        if output.token_ids:
            record.stamps.append(stamp)
            record.output_tokens += len(output.token_ids)
        events = processor.process(output)
        if not output.is_final:
            forward_aborts(self._client, processor)
        failure = output.error or next((event.error for event in events if event.error is not None), None)
        if failure is not None and not record.error:
            record.error = failure.code
        if output.is_final:
            del self.open_requests[output.request_id]
            record.ended = stamp
            record.cached_tokens = 0 if output.usage is None else output.usage.cached_tokens
        self._on_progress(len(output.token_ids), output.is_final)
