"""drive: feeds a workload to the text service at its own pace (open loop) and stamps what comes back.

It is llm's pump with a clock: requests are checked before the first is sent, each is sent when it arrives, whether
those before it are served or not, and the main thread makes text of every token while the engine works.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from chairlift.bench.offline.request_records import RequestRecord
from chairlift.bench.workload.workload import Workload, WorkloadRequest
from chairlift.core.errors import EngineDead, InvalidRequest, QueueFull
from chairlift.core.request import EngineOutput
from chairlift.core.sampling import SamplingParams
from chairlift.llm.batch_run import FULL_QUEUE_PAUSE, forward_aborts
from chairlift.llm.output_processor import OutputProcessor
from chairlift.llm.text_service import TextService

Note = Callable[[int, bool], None]
"""Hears of the tokens that came, and whether a request ended with them."""


@dataclass(frozen=True, slots=True)
class DriveResult:
    """A run that is over.

    Attributes:
        rides: in the order of the workload.
        seconds: from the start to the last text made.
        began: the start on time.perf_counter().
    """

    rides: Sequence[RequestRecord]
    seconds: float
    began: float


def drive_workload(service: TextService, workload: Workload, note: Note | None = None) -> DriveResult:
    """Run a workload, greedy, each request to its full length; returns when every request has ended.

    Tokens are stamped in the engine's sink. Whatever interrupts it aborts what is open. Raises InvalidRequest naming
    the request when one can never be served, before anything is sent. A request that fails is counted, not raised.
    """
    assemblers = [_assembler(service, number, item) for number, item in enumerate(workload.items)]
    run = _Run(
        service, [RequestRecord(item) for item in workload.items], assemblers, note or (lambda tokens, ended: None)
    )
    try:
        run.to_the_end()
    finally:
        for request_id in run.riding:
            service.client.abort(request_id)
    return DriveResult(run.rides, time.perf_counter() - run.began, run.began)


def _assembler(service: TextService, number: int, item: WorkloadRequest) -> OutputProcessor:
    params = SamplingParams(
        temperature=0.0, max_tokens=item.output_tokens, ignore_eos=True, seed=0, structured=item.structured
    )
    try:
        return service.prepare_completion(
            item.prompt_token_ids, params, priority=item.priority, tenant=item.tenant, timeout=item.timeout
        )
    except InvalidRequest as error:
        raise InvalidRequest(f"request {number} of the workload: {error.message}", **error.details) from None


class _Run:
    """One run while it goes on."""

    def __init__(
        self, service: TextService, rides: list[RequestRecord], assemblers: list[OutputProcessor], note: Note
    ) -> None:
        self.rides = rides
        self.riding: dict[str, tuple[RequestRecord, OutputProcessor]] = {}
        self._client = service.client
        self._window = service.max_queue_size
        self._silent: set[str] = set()  # sent, and nothing came back: those that may stand in the engine's line
        self._line = deque(zip(rides, assemblers, strict=True))
        self._news: SimpleQueue[tuple[float, list[EngineOutput]]] = SimpleQueue()
        self._note = note
        self.began = time.perf_counter()

    def to_the_end(self) -> None:
        while self._line or self.riding:
            self._send_what_is_due()
            try:
                stamp, outputs = self._news.get(timeout=self._pause())
            except Empty:
                continue
            for output in outputs:
                self._take(output, stamp)

    def _sink(self, outputs: list[EngineOutput]) -> None:
        self._news.put((time.perf_counter() - self.began, outputs))

    def _may_send(self) -> bool:
        return bool(self._line) and len(self._silent) < self._window

    def _pause(self) -> float | None:
        """Seconds until the next request is due; None when only the engine's news count."""
        if not self._may_send():
            return None
        return max(0.0, self._line[0][0].item.at - (time.perf_counter() - self.began))

    def _send_what_is_due(self) -> None:
        while self._may_send() and self._line[0][0].item.at <= time.perf_counter() - self.began:
            ride, assembler = self._line.popleft()
            request = assembler.request
            self.riding[request.request_id] = (ride, assembler)
            self._silent.add(request.request_id)
            try:
                self._client.submit(request, self._sink)
            except EngineDead as error:
                self._sink([EngineOutput.failed(request, error)])

    def _take(self, output: EngineOutput, stamp: float) -> None:
        ride, assembler = self.riding[output.request_id]
        self._silent.discard(output.request_id)
        if isinstance(output.error, QueueFull):
            del self.riding[output.request_id]
            self._line.appendleft((ride, assembler))
            time.sleep(FULL_QUEUE_PAUSE)
            return
        if output.token_ids:
            ride.stamps.append(stamp)
            ride.output_tokens += len(output.token_ids)
        events = assembler.process(output)
        if not output.is_final:
            forward_aborts(self._client, assembler)
        failure = output.error or next((event.error for event in events if event.error is not None), None)
        if failure is not None and not ride.error:
            ride.error = failure.code
        if output.is_final:
            del self.riding[output.request_id]
            ride.ended = stamp
            ride.cached_tokens = 0 if output.usage is None else output.usage.cached_tokens
        self._note(len(output.token_ids), output.is_final)
