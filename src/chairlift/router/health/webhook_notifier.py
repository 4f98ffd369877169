"""WebhookNotifier: posts every change of a replica's state to a URL, in the background."""

import asyncio
import logging
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from urllib.parse import urlsplit

import aiohttp

from chairlift.core.errors import ConfigError
from chairlift.router.health.health_state import Transition

log = logging.getLogger(__name__)

RETRY_STATUSES = frozenset({408, 425, 429})
"""Client errors that a retry may help; another 4xx means that the receiver does not want the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyConfig:
    """How notifications are sent. Raises ConfigError.

    Attributes:
        url: receiver of a POST with a JSON body.
        headers: headers of each request, such as the receiver's key.
        max_waiting: notifications that wait at most; a further one replaces the oldest.
        max_attempts: attempts for each notification.
        timeout_seconds: longest time of an attempt.
        retry_seconds: pause before the second attempt; it doubles with each further one.
        max_retry_seconds: longest pause.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    max_waiting: int = 256
    max_attempts: int = 5
    timeout_seconds: float = 5.0
    retry_seconds: float = 1.0
    max_retry_seconds: float = 30.0

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(
                "notify_url must be an http or https URL, such as https://hooks.example/replicas", option="notify_url"
            )
        if self.max_waiting < 1 or self.max_attempts < 1:
            raise ConfigError(
                f"max_waiting and max_attempts of notifications must be at least 1, got {self.max_waiting} and "
                f"{self.max_attempts}"
            )


def webhook_session() -> aiohttp.ClientSession:
    """Return a session for webhooks: it trusts the CAs of the system, and has no certificate of its own."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=ssl.create_default_context()))


class WebhookNotifier:
    """Sends notifications one after the other, in order; `on_transition` never blocks.

    Attributes:
        num_sent: notifications that were accepted.
        num_failed: notifications given up after their attempts.
        num_dropped: notifications that a full queue replaced.
    """

    def __init__(
        self, config: NotifyConfig, session: aiohttp.ClientSession, *, router_name: str = "", seed: int = 0,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        """Create the notifier; `router_name` tells several routers apart in the receiver."""
        self.num_sent = self.num_failed = self.num_dropped = 0
        self._config, self._session, self._router_name = config, session, router_name
        self._receiver = urlsplit(config.url).hostname  # the rest of a webhook's URL is often a secret
        self._random = Random(seed)
        self._wall_clock = wall_clock
        self._waiting: deque[dict[str, object]] = deque()
        self._wakeup = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def on_transition(self, transition: Transition) -> None:
        """Queue a notification."""
        at = datetime.fromtimestamp(self._wall_clock(), UTC).isoformat(timespec="milliseconds")
        text = f"replica {transition.replica_id} is {transition.new}, was {transition.old}: {transition.reason}"
        self._waiting.append(
            {
                "type": "replica_state", "text": text, "time": at, "router": self._router_name,
                "replica": transition.replica_id, "incarnation": transition.incarnation,
                "old_state": transition.old, "new_state": transition.new, "cause": transition.cause,
                "reason": transition.reason, "ejection_seconds": round(transition.ejection_seconds, 3),
            }
        )  # fmt: skip
        if len(self._waiting) > self._config.max_waiting:
            self._waiting.popleft()
            self.num_dropped += 1
        self._idle.clear()
        self._wakeup.set()

    async def close(self) -> None:
        """Close the session."""
        await self._session.close()

    async def run(self) -> None:
        """Send notifications until cancelled."""
        while True:
            while self._waiting:
                await self._send(self._waiting.popleft())
            self._idle.set()
            self._wakeup.clear()
            await self._wakeup.wait()

    async def flush(self, timeout_seconds: float) -> bool:
        """Wait until all are sent or given up, at most `timeout_seconds`; return whether they are. `run` must run."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def _send(self, body: dict[str, object]) -> None:
        config = self._config
        error = ""
        for attempt in range(config.max_attempts):
            if attempt:
                seconds = min(config.retry_seconds * 2 ** (attempt - 1), config.max_retry_seconds)
                # With jitter: several routers see the same transition at the same time.
                await asyncio.sleep(seconds * (0.5 + self._random.random() / 2))
            error, may_retry = await self._post(body)
            if not error:
                self.num_sent += 1
                return
            if not may_retry:
                break
        self.num_failed += 1
        log.warning("the notification %r was not accepted by %s: %s", body["text"], self._receiver, error)

    async def _post(self, body: dict[str, object]) -> tuple[str, bool]:
        """Return what is wrong, "" for nothing, and whether a retry may help."""
        config = self._config
        try:
            async with self._session.post(
                config.url, json=body, headers=config.headers, allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=config.timeout_seconds),
            ) as response:  # fmt: skip
                status = response.status  # its body is of no use and is not read
        except TimeoutError:
            return f"no answer within {config.timeout_seconds:g} s", True
        except (aiohttp.ClientError, OSError, ValueError) as error:
            is_invalid = isinstance(error, aiohttp.InvalidURL)
            has_url = is_invalid or isinstance(error, aiohttp.ClientResponseError)
            return type(error).__name__ if has_url else f"{type(error).__name__}: {error}", not is_invalid
        if 200 <= status < 300:
            return "", False
        return f"it answers {status}", status >= 500 or status in RETRY_STATUSES
