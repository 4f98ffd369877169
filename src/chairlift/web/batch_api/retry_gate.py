"""RetryGate: lets requests begin again after the server was busy, first one alone, then all."""

from chairlift.web.batch_files.batch_run import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS


class RetryGate:
    """Whether the requests of one tenant, or of one batch, may begin.

    open ──busy──> paused ──its end──> one request alone ──another response──> open
                     ^──────────────busy──────┘
    """

    def __init__(self) -> None:
        self._pause_seconds = self._paused_until = 0.0  # no pause: open
        self._is_probed = False

    def may_begin(self, now: float) -> bool:
        """Return whether a request may begin."""
        return not self._pause_seconds or (now >= self._paused_until and not self._is_probed)

    def begin(self) -> bool:
        """Note that a request begins; returns whether it is the one that begins alone."""
        if not self._pause_seconds:
            return False
        self._is_probed = True
        return True

    def pause(self, now: float, retry_after: float | None, *, is_alone: bool) -> None:
        """Note that the server was busy: nothing begins for `retry_after` seconds, or for a pause that grows."""
        if not self._pause_seconds:
            self._pause_seconds = FIRST_PAUSE_SECONDS
        elif is_alone:
            self._pause_seconds = min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)
        seconds = min(self._pause_seconds if retry_after is None else retry_after, LONGEST_PAUSE_SECONDS)
        self._paused_until = max(self._paused_until, now + seconds)

    def open(self) -> None:
        """Note that the request that began alone was not too much: all may begin."""
        self._pause_seconds = 0.0

    def end(self, *, is_alone: bool) -> None:
        """Note the end of a request, also of one that was aborted."""
        if is_alone:
            self._is_probed = False
