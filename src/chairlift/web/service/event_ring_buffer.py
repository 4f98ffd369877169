"""EventRingBuffer: the last entries of a series, numbered, so that each reader gets those that it has not read."""

from collections import deque
from collections.abc import Sequence
from itertools import islice


class EventRingBuffer:
    """Keeps the last `max_entries` objects. Belongs to one thread.

    Attributes:
        num_added: entries so far, those that are no longer kept included.
    """

    def __init__(self, max_entries: int) -> None:
        self._entries: deque[object] = deque(maxlen=max_entries)
        self.num_added = 0

    def add(self, entry: object) -> None:
        """Add an entry, which must not change any more."""
        self._entries.append(entry)
        self.num_added += 1

    def since(self, number: int) -> Sequence[object]:
        """Return the kept entries after the first `number`, oldest first."""
        num_new = min(self.num_added - number, len(self._entries))
        return list(islice(self._entries, len(self._entries) - num_new, None)) if num_new > 0 else []

    def entries(self) -> Sequence[object]:
        """Return the entries that are kept, the oldest first."""
        return list(self._entries)
