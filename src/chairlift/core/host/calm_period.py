"""CalmPeriod: when to try again what other programs made impossible; each trial that fails doubles the wait."""

CALM = 0.2
"""Share of its time for which a thread waits for a processor, below which nothing delays it."""


class CalmPeriod:
    """Measures how long nothing was delayed, and how long that must last before the next trial."""

    def __init__(self, first_seconds: float, max_seconds: float) -> None:
        """Wait `first_seconds` before a trial, at most `max_seconds` after trials that failed."""
        self._first_seconds, self._max_seconds = first_seconds, max_seconds
        self._seconds = first_seconds
        self._since: float | None = None
        self._tried_at: float | None = None

    def observe(self, now: float, *, is_calm: bool) -> None:
        """Note whether there was a delay until `now`."""
        if not is_calm:
            self._since = None
        elif self._since is None:
            self._since = now

    def has_passed(self, now: float) -> bool:
        """Return whether it was calm for long enough for a trial."""
        return self._since is not None and now - self._since >= self._seconds

    def begin_trial(self, now: float) -> None:
        """Note a trial; the next one needs another calm period."""
        self._tried_at, self._since = now, None

    def end_trial(self, now: float) -> None:
        """Note a delay that ends the last trial; it has failed if it was shorter than the period before it.

        Another delay before the next trial says nothing more.
        """
        if self._tried_at is None:
            return
        has_failed = now - self._tried_at < self._seconds
        self._seconds = min(2 * self._seconds, self._max_seconds) if has_failed else self._first_seconds
        self._tried_at = None
