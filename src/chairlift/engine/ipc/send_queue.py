"""Outbox: what is on its way to an engine in another process, and waits here while there is none."""

import time

from chairlift.core.errors import QueueFull, RequestTimeout
from chairlift.core.request import FinishReason
from chairlift.engine.ipc.engine_connection import EngineConnection
from chairlift.engine.ipc.messages import Abort, RemoteCall, WatchSteps
from chairlift.engine.ipc.open_requests import OpenRequest, OpenRequests
from chairlift.engine.ipc.wakeup_queue import WakeupQueue

OutgoingMessage = OpenRequest | Abort | RemoteCall | WatchSteps


class SendQueue:
    """Letters come from any thread; the thread that owns the link posts them.

    A request that waits here can be aborted, and ends when its own time is up.

    Attributes:
        limit: how many may wait here; one more is refused with QueueFull.
    """

    def __init__(self, requests: OpenRequests) -> None:
        self._requests = requests
        self.limit = 2**31
        self._mailbox: WakeupQueue[OutgoingMessage] = WakeupQueue()
        self._queued: dict[OpenRequest | RemoteCall | Abort, None] = {}

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is something to post."""
        return self._mailbox.fileno()

    def put(self, letter: OutgoingMessage) -> None:
        """Hand a letter over."""
        self._mailbox.put(letter)

    def wake(self) -> None:
        """Have the owner of the link look up."""
        self._mailbox.wake()

    def clear(self) -> None:
        """Forget what waits in line: its requests have ended."""
        self._queued.clear()

    def close(self) -> None:
        """Take nothing more."""
        self._mailbox.close()

    def flush(self, link: EngineConnection | None) -> None:
        """Send what is here in the order in which it came; keep it while there is no engine that takes it."""
        takes = link is not None and link.ready
        for letter in self._mailbox.drain():
            if isinstance(letter, WatchSteps):  # an engine that comes later is told with its welcome
                if link is not None and takes:
                    link.send(letter)
            elif not takes and isinstance(letter, OpenRequest) and len(self._queued) >= self.limit:
                error = QueueFull(len(self._queued), self.limit)
                self._requests.deliver([letter.final_output(FinishReason.ERROR, error)])
            elif not isinstance(letter, Abort):
                self._queued[letter] = None
            elif letter.index is not None and self._is_in_line(letter.request_id):
                self._queued[letter] = None  # behind its request
            elif not self._abort(letter) and link is not None:
                link.send(letter)
        now = time.monotonic()
        if link is not None and link.ready:
            line, self._queued = self._queued, {}
            for letter in line:
                if isinstance(letter, RemoteCall | Abort):
                    link.send(letter)
                elif letter in self._requests:
                    link.send(letter.to_frame(now))
        for letter in list(self._queued):
            if isinstance(letter, OpenRequest):
                self._keep(letter, now)

    def _keep(self, entry: OpenRequest, now: float) -> None:
        entry.has_waited = True
        if entry not in self._requests:
            del self._queued[entry]
        elif entry.is_expired(now):
            del self._queued[entry]
            timeout = RequestTimeout(entry.request.timeout or 0.0)
            self._requests.deliver([entry.final_output(FinishReason.ERROR, timeout)])

    def _is_in_line(self, request_id: str) -> bool:
        entry = self._requests.get(request_id)
        return entry is not None and entry in self._queued

    def _abort(self, letter: Abort) -> bool:
        """End a request that no engine has seen; False when there is none."""
        entry = self._requests.get(letter.request_id)
        if entry is None or entry not in self._queued:
            return False
        del self._queued[entry]
        self._requests.deliver([entry.final_output(FinishReason.ABORT)])
        return True
