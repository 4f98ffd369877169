"""Handover: the open requests that a draining replica may hand over to another one, because a router resumes them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class Handover:
    """Registry of the engine requests that a router can resume elsewhere. Belongs to one event loop."""

    def __init__(self) -> None:
        self._open: set[str] = set()

    @contextmanager
    def registered(self, request_ids: Sequence[str]) -> Iterator[None]:
        """Register engine requests while the context is open."""
        self._open.update(request_ids)
        try:
            yield
        finally:
            self._open.difference_update(request_ids)

    def take_all(self) -> set[str]:
        """Return the registered requests and remove them; the caller aborts them."""
        taken, self._open = self._open, set()
        return taken
