"""ManagedEngine: the engine of a manager, which starts when it is first needed and ends with its manager."""

import threading
import weakref
from typing import Any

from chairlift.core.load_report import ReplicaState
from chairlift.engine.client.inline import InlineClient
from chairlift.llm.transformers_compat.engine_source import EngineSource
from chairlift.llm.transformers_compat.pause import PauseHolders
from chairlift.llm.transformers_compat.request_tracker import RequestTracker
from chairlift.llm.transformers_compat.shared_parameters import SharedParameters


class ManagedEngine:
    """Starts engines of one source, one at a time.

    The engine of a ManagedEngine without references finishes its open requests, and then its thread ends.

    Attributes:
        client: the engine; None while there is none.
        pauses: those that hold the engine.
    """

    def __init__(self, source: EngineSource, model: Any, requests: RequestTracker) -> None:
        self.client: InlineClient | None = None
        self.pauses = PauseHolders()
        self._source = source
        self._model = model
        self._requests = requests
        self._lock = threading.Lock()  # held while an engine starts
        self._finalizer: weakref.finalize[[RequestTracker, InlineClient], ManagedEngine] | None = None

    def start(self) -> InlineClient:
        """Return the engine that runs, or start one. Raises ModelError and ConfigError."""
        with self._lock:
            client = self.client
            if client is None or client.state is not ReplicaState.READY:
                self._detach()
                self.client = client = self._source.start()
                self.pauses = PauseHolders()  # those of an engine that has ended hold nothing
                self._shared_parameters = SharedParameters(self._model)
                # Neither the requests nor the engine have a reference to the manager or to this object.
                self._finalizer = weakref.finalize(self, _close_when_idle, self._requests, client)
                self._finalizer.atexit = False  # engine_hold closes it then
            return client

    def check_parameters(self) -> None:
        """Raise RuntimeError for a parameter of the model that was replaced since the engine started."""
        self._shared_parameters.check()

    def take(self) -> InlineClient | None:
        """Return the engine, which the caller closes; None without one."""
        client, self.client = self.client, None
        self._detach()
        return client

    def _detach(self) -> None:
        """Forget to close the engine: it has ended, or the caller closes it."""
        if self._finalizer is not None:
            self._finalizer.detach()
            self._finalizer = None


def _close_when_idle(requests: RequestTracker, client: InlineClient) -> None:
    """Let the engine thread end after the last open request; any thread may run this, whatever locks it holds."""
    client.post(lambda: requests.close_when_none_is_open(client))
