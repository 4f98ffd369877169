"""TokenBucket: a rate limit that holds a minute's amount at most and fills evenly."""

MINUTE = 60.0


class TokenBucket:
    """A rate limit: holds a minute's amount at most and fills evenly; corrections may overdraw it."""

    def __init__(self, per_minute: float, now: float) -> None:
        self._size = max(1.0, per_minute)
        self._rate = per_minute / MINUTE
        self._level = self._size
        self._at = now

    def seconds_until(self, amount: float, now: float) -> float:
        """Return seconds until `amount` can be taken, 0 for now; above the size, until it is full."""
        self._fill(now)
        missing = min(amount, self._size) - self._level
        return 0.0 if missing <= 0 else missing / self._rate

    def take(self, amount: float, now: float) -> None:
        """Take `amount`, even into overdraft; a negative amount is a refund."""
        self._fill(now)
        self._level = min(self._size, self._level - amount)

    def in_use(self, now: float) -> float:
        """Return the amount that was taken and has not filled again."""
        self._fill(now)
        return self._size - self._level

    def resize(self, per_minute: float, now: float) -> None:
        """Change the rate and size; the amount in use stays in use."""
        self._fill(now)
        size = max(1.0, per_minute)
        self._level += size - self._size
        self._size, self._rate = size, per_minute / MINUTE

    def _fill(self, now: float) -> None:
        self._level = min(self._size, self._level + (now - self._at) * self._rate)
        self._at = now
