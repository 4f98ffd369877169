"""InFlightRequests: maps each request without a final output to the sink of its outputs."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

from chairlift.core.engine_output import EngineOutput, FinishReason
from chairlift.core.errors import ChairliftError, DuplicateRequestId, EngineDead
from chairlift.core.request import GenerateRequest
from chairlift.engine.client.base import OutputSink
from chairlift.engine.client.output_delivery import call_sinks
from chairlift.engine.ipc.messages import Submit, encode


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """One request without a final output.

    Attributes:
        request: the request as submitted.
        sink: receives its outputs.
        frame: the encoded Submit message.
        since: monotonic seconds of its submission.
        has_waited: whether it could not be sent to an engine at once.
    """

    request: GenerateRequest
    sink: OutputSink
    frame: bytes
    since: float
    has_waited: bool = False

    def final_output(self, reason: FinishReason, error: ChairliftError | None = None) -> EngineOutput:
        """Return the final output of a request that no engine completes."""
        return EngineOutput.ended(self.request, reason, error)

    def is_expired(self, now: float) -> bool:
        """Return whether the request's own timeout has passed."""
        return self.request.timeout is not None and now - self.since >= self.request.timeout

    def to_frame(self, now: float) -> bytes:
        """Return the encoded message; the wait for an engine counts against the request's own timeout."""
        if not self.has_waited or self.request.timeout is None:
            return self.frame
        left = max(self.request.timeout - (now - self.since), 1e-6)
        return encode(Submit(replace(self.request, timeout=left)))


class InFlightRequests:
    """Ends each request exactly once: the final output removes it, and later outputs are dropped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_id: dict[str, InFlightRequest] = {}
        self.closed: EngineDead | None = None

    def add(self, entry: InFlightRequest) -> None:
        """Add a request.

        Raises DuplicateRequestId, and EngineDead after close().
        """
        with self._lock:
            if self.closed is not None:
                raise EngineDead(self.closed.message)
            if entry.request.request_id in self._by_id:
                raise DuplicateRequestId(entry.request.request_id)
            self._by_id[entry.request.request_id] = entry

    def get(self, request_id: str) -> InFlightRequest | None:
        """Return the open request of this id."""
        return self._by_id.get(request_id)

    def __contains__(self, entry: InFlightRequest) -> bool:
        return self._by_id.get(entry.request.request_id) is entry

    def deliver(self, outputs: Iterable[EngineOutput]) -> None:
        """Call each sink with its outputs, all of a step at once; a final output removes its request."""
        with_sinks: list[tuple[OutputSink, EngineOutput]] = []
        with self._lock:
            for output in outputs:
                entry = self._by_id.get(output.request_id)
                if entry is None:
                    continue
                with_sinks.append((entry.sink, output))
                if output.is_final:
                    del self._by_id[output.request_id]
        call_sinks(with_sinks)  # without the lock: a sink may submit

    def end(self, error: EngineDead) -> None:
        """End all requests that are open now with the error."""
        self.deliver([entry.final_output(FinishReason.ERROR, error) for entry in list(self._by_id.values())])

    def close(self, error: EngineDead) -> None:
        """End all open requests with the error and reject new ones."""
        with self._lock:
            self.closed = error
        self.end(error)
