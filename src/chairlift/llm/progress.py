"""A progress bar on stderr for many requests: how many are done, and output tokens a second."""

import time
from types import TracebackType
from typing import Any, Self

REFRESH_SECONDS = 0.2


class Progress:
    """Counts requests and tokens; draws with tqdm when it is shown."""

    def __init__(self, total: int, *, shown: bool) -> None:
        self._bar: Any = None
        self._tokens = 0
        self._began = self._drawn = time.monotonic()
        if shown and total:
            from tqdm import tqdm

            self._bar = tqdm(total=total, unit=" requests", dynamic_ncols=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._draw(time.monotonic())
            self._bar.close()

    def tokens(self, count: int) -> None:
        """Count output tokens."""
        self._tokens += count
        if self._bar is not None and (now := time.monotonic()) - self._drawn > REFRESH_SECONDS:
            self._draw(now)

    def request_done(self) -> None:
        """Count a request."""
        if self._bar is not None:
            self._bar.update(1)

    def _draw(self, now: float) -> None:
        self._drawn = now
        rate = self._tokens / max(now - self._began, 1e-9)
        self._bar.set_postfix_str(f"{rate:.1f} output tok/s")
