"""SendQueue: holds messages for an engine in another process until that engine accepts them."""

import time

from chairlift.core.engine_output import FinishReason
from chairlift.core.errors import QueueFull, RequestTimeout
from chairlift.engine.ipc.engine_connection import EngineConnection
from chairlift.engine.ipc.in_flight_requests import InFlightRequest, InFlightRequests
from chairlift.engine.ipc.messages import Abort, RemoteCall, WatchSteps
from chairlift.engine.ipc.wakeup_queue import WakeupQueue

OutgoingMessage = InFlightRequest | Abort | RemoteCall | WatchSteps


class SendQueue:
    """Any thread puts messages; the thread that owns the connection sends them.

    A queued request can be aborted, and ends when its own timeout has passed.

    Attributes:
        limit: requests that may be queued here; one more is rejected with QueueFull.
    """

    def __init__(self, requests: InFlightRequests) -> None:
        self._requests = requests
        self.limit = 2**31
        self._incoming: WakeupQueue[OutgoingMessage] = WakeupQueue()
        self._queued: dict[InFlightRequest | RemoteCall | Abort, None] = {}

    def fileno(self) -> int:
        """Return the descriptor that is readable when messages were put."""
        return self._incoming.fileno()

    def put(self, message: OutgoingMessage) -> None:
        """Add a message and wake the owner of the connection."""
        self._incoming.put(message)

    def wake(self) -> None:
        """Wake the owner of the connection."""
        self._incoming.wake()

    def clear(self) -> None:
        """Forget the queued messages: their requests have ended."""
        self._queued.clear()

    def close(self) -> None:
        """Close the queue; later messages are dropped."""
        self._incoming.close()

    def flush(self, connection: EngineConnection | None) -> None:
        """Send the messages in the order of put(); keep them while no engine accepts them."""
        can_send = connection is not None and connection.ready
        for message in self._incoming.drain():
            if isinstance(message, WatchSteps):  # a later engine receives it after its Ready
                if connection is not None and can_send:
                    connection.send(message)
            elif not can_send and isinstance(message, InFlightRequest) and len(self._queued) >= self.limit:
                error = QueueFull(len(self._queued), self.limit)
                self._requests.deliver([message.final_output(FinishReason.ERROR, error)])
            elif not isinstance(message, Abort):
                self._queued[message] = None
            elif message.index is not None and self._is_queued(message.request_id):
                self._queued[message] = None  # behind its request
            elif not self._abort(message) and connection is not None:
                connection.send(message)
        now = time.monotonic()
        if connection is not None and connection.ready:
            queued, self._queued = self._queued, {}
            for message in queued:
                if isinstance(message, RemoteCall | Abort):
                    connection.send(message)
                elif message in self._requests:
                    connection.send(message.to_frame(now))
        for message in list(self._queued):
            if isinstance(message, InFlightRequest):
                self._keep(message, now)

    def _keep(self, entry: InFlightRequest, now: float) -> None:
        entry.has_waited = True
        if entry not in self._requests:
            del self._queued[entry]
        elif entry.is_expired(now):
            del self._queued[entry]
            timeout = RequestTimeout(entry.request.timeout or 0.0)
            self._requests.deliver([entry.final_output(FinishReason.ERROR, timeout)])

    def _is_queued(self, request_id: str) -> bool:
        entry = self._requests.get(request_id)
        return entry is not None and entry in self._queued

    def _abort(self, message: Abort) -> bool:
        """End a request that was not sent to an engine; returns False without one."""
        entry = self._requests.get(message.request_id)
        if entry is None or entry not in self._queued:
            return False
        del self._queued[entry]
        self._requests.deliver([entry.final_output(FinishReason.ABORT)])
        return True
