"""ProgressBar: a progress bar on stderr with finished requests and output tokens per second."""

import time
from types import TracebackType
from typing import Any, Self

REFRESH_SECONDS = 0.2


class ProgressBar:
    """Counts requests and tokens; shows a tqdm bar when `shown`.

    Attributes:
        num_requests: finished requests.
        num_tokens: output tokens.
    """

    def __init__(self, total: int, *, shown: bool) -> None:
        self._bar: Any = None
        self.num_requests = self.num_tokens = 0
        self._started_at = self._refreshed_at = time.monotonic()
        if shown and total:
            from tqdm import tqdm

            self._bar = tqdm(total=total, unit=" requests", dynamic_ncols=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._refresh(time.monotonic())
            self._bar.close()

    def tokens(self, count: int) -> None:
        """Add output tokens and refresh the rate."""
        self.num_tokens += count
        if self._bar is not None and (now := time.monotonic()) - self._refreshed_at > REFRESH_SECONDS:
            self._refresh(now)

    def request_done(self) -> None:
        """Count a finished request."""
        self.num_requests += 1
        if self._bar is not None:
            self._bar.update(1)

    def _refresh(self, now: float) -> None:
        self._refreshed_at = now
        rate = self.num_tokens / max(now - self._started_at, 1e-9)
        self._bar.set_postfix_str(f"{rate:.1f} output tok/s")
