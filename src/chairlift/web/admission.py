"""AdmissionController: limits how many requests wait for the engine, and for how long.

The API server knows the length of the admission queue itself: a request waits from its admission until the engine's
first output for it. The expected wait of a new request has three parts:

beyond free slots  requests that must finish before it, divided by the finish rate
into free slots    only where the engine keeps requests waiting all the same (step budget, memory): requests before it,
                   divided by the start rate. Else they start with the next step
in the server      the mean of recent waits, where the engine keeps no request waiting
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import ge

from chairlift.core.clock import Clock, SystemClock
from chairlift.core.errors import ConfigError, Overloaded
from chairlift.core.validation import format_value
from chairlift.web.rate_estimators import DecayingRate, RateEstimator

INTERVAL_SECONDS_PER_REJECTION = 0.0001
MAX_INTERVAL_SECONDS = 0.25
"""Seconds; see AdmissionController.stream_interval."""

RECENT_WAITS = 64
RECENT_SECONDS = 10.0
MAX_RETRY_SECONDS = 60.0

REJECTION_CACHE_SECONDS = 0.01
"""Seconds for which a rejection is reused while the queue gets no shorter: a flood brings many in that time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """Limits of the admission queue in front of the engine.

    Attributes:
        max_waiting_requests: most requests that wait for their first token.
        max_waiting_tokens: most prompt tokens of the waiting requests together.
        max_waiting_bytes: most bytes of the waiting requests' bodies together.
        max_queue_wait: longest expected wait in seconds; a request that would wait longer is rejected at once. None:
            requests wait for as long as their own timeouts allow.
        always_admitted: number of waiting requests below which max_queue_wait does not apply: a few requests to a slow
            model wait rather than being rejected, while a queue of hundreds would take long to drain.
    """

    max_waiting_requests: int = 1024
    max_waiting_tokens: int = 1_000_000
    max_waiting_bytes: int = 256_000_000
    max_queue_wait: float | None = None
    always_admitted: int = 16

    def __post_init__(self) -> None:
        for each in fields(self):
            if (value := getattr(self, each.name)) is not None and not value >= 0:
                raise ConfigError(f"{each.name} must be at least 0, got {format_value(value)}", option=each.name)


class Permit:
    """Admission of one request, which waits, runs and ends; a repeated transition has no effect.

    The permit's owner must call end().
    """

    def __init__(
        self, controller: "AdmissionController", tokens: int, on_end: Callable[[int], None] | None, body_bytes: int = 0
    ) -> None:  # fmt: skip
        self._controller = controller
        self._tokens, self._body_bytes = tokens, body_bytes
        self._on_end = on_end
        self._waiting_since = controller.now
        self._num_before = controller.waiting_requests - 1  # without this request, which is counted
        self._waits = True
        self._runs = self._is_over = False

    @property
    def num_ahead(self) -> int:
        """Requests that were admitted before this one and still wait; 0 for one that does not wait."""
        return self._controller.num_before(self) if self._waits else 0

    @property
    def is_waiting(self) -> bool:
        """Whether the engine has not started the request yet."""
        return self._waits

    def attach(self, timeout: float | None, on_end: Callable[[int], None]) -> None:
        """Set timeout and end callback of a request that the early check admitted by its header block.

        Raises Overloaded, without any change, where its expected wait exceeds its timeout.
        """
        if self._waits and timeout is not None:
            self._controller.check_wait(timeout, self._num_before)
        self._on_end = on_end

    def mark_running(self) -> None:
        """Record that the engine has started the request, which waits no longer."""
        if self._waits:
            self._waits = False
            self._runs = True
            self._controller.on_running(
                self, self._tokens, self._body_bytes, self._controller.now - self._waiting_since
            )

    def mark_finished(self, *, makes_room: bool = True) -> None:
        """Record that the engine has finished the request, though its client may still read."""
        if self._runs:
            self._runs = False
            self._controller.on_finished(makes_room=makes_room)

    def set_prompt_tokens(self, tokens: int) -> None:
        """Set the prompt's length once it is known. Raises Overloaded if the queue has no room for it."""
        if self._waits:
            self._controller.weigh(self._tokens, tokens)
            self._tokens = tokens

    def set_body_bytes(self, body_bytes: int) -> None:
        """Set the size of the request's body. Raises Overloaded if the queue has no room for it."""
        if self._waits:
            self._controller.weigh_body(self._body_bytes, body_bytes)
            self._body_bytes = body_bytes

    def end(self, used_tokens: int = 0, *, makes_room: bool = True) -> None:
        """End the request, which used `used_tokens`. Without makes_room its end frees no slot for others."""
        if self._is_over:
            return
        self._is_over = True
        if self._waits:
            self._waits = False
            self._controller.on_abandoned(self, self._tokens, self._body_bytes)
        self.mark_finished(makes_room=makes_room)
        self._controller.close()
        if self._on_end is not None:
            self._on_end(used_tokens)


class AdmissionController:
    """Counts and limits the requests that wait for the engine. Belongs to one event loop.

    Attributes:
        waiting_requests: admitted requests without a first output.
        waiting_tokens: prompt tokens of the waiting requests.
        waiting_bytes: bytes of the waiting requests' bodies.
        running_requests: requests that the engine has started and not finished.
        open_requests: admitted requests that have not ended.
        engine_counts: waiting and running requests of the engine after its last step; another thread may set it.
        max_running: most requests that the engine runs at once, inf while unknown.
    """

    def __init__(self, limits: AdmissionLimits, clock: Clock | None = None) -> None:
        self._limits = limits
        self._clock = clock or SystemClock()
        self._finish_rate, self._start_rate = RateEstimator(), RateEstimator()
        self._rejection_rate = DecayingRate()
        # Expiry, what waited then, and the error.
        self._cached_rejection: tuple[float, tuple[int, int, int], Overloaded] | None = None
        # Start time and seconds waited of each recently started request.
        self._waits: deque[tuple[float, float]] = deque(maxlen=RECENT_WAITS)
        self.engine_counts = (0, 0)
        self.max_running: float = math.inf
        self._waiting: dict[Permit, None] = {}  # in the order of admission
        self.waiting_requests = 0
        self.waiting_tokens = 0
        self.waiting_bytes = 0
        self.running_requests = 0
        self.open_requests = 0

    @property
    def now(self) -> float:
        """Current time of the controller's clock."""
        return self._clock.now()

    def renew(self, limits: AdmissionLimits) -> None:
        """Apply other limits from now on; requests that wait stay in the queue."""
        self._limits, self._cached_rejection = limits, None

    def admit(
        self, tokens: int, *, timeout: float | None = None, on_end: Callable[[int], None] | None = None,
        body_bytes: int = 0,
    ) -> Permit:  # fmt: skip
        """Admit a request with a prompt of `tokens` tokens; the caller must end the permit.

        `on_end` receives the tokens used at the end. Raises as check does.
        """
        self.check(tokens, timeout=timeout, body_bytes=body_bytes)
        self.waiting_requests += 1
        self.waiting_tokens += tokens
        self.waiting_bytes += body_bytes
        self.open_requests += 1
        self._update_rates()
        permit = Permit(self, tokens, on_end, body_bytes)
        self._waiting[permit] = None
        return permit

    def num_before(self, permit: Permit) -> int:
        """Return how many waiting requests were admitted before one of them; for permits."""
        return next(number for number, each in enumerate(self._waiting) if each is permit)

    def check(self, tokens: int = 0, *, timeout: float | None = None, body_bytes: int = 0) -> None:
        """Raise Overloaded if a request with a prompt of `tokens` tokens would not be admitted.

        An empty queue admits every request. A full queue admits none, nor does one whose expected wait exceeds the
        request's own timeout or, with always_admitted requests or more waiting, the limit.
        """
        if not self.waiting_requests:
            return
        limits, wait = self._limits, self.expected_wait
        if self.waiting_requests >= limits.max_waiting_requests:
            raise self._rejected(
                f"{self.waiting_requests} requests wait, the limit is {limits.max_waiting_requests}", wait
            )
        if self.waiting_tokens + tokens > limits.max_waiting_tokens:
            waiting = f"{self.waiting_tokens} prompt tokens wait and this request has {tokens}"
            raise self._rejected(f"{waiting}, the limit is {limits.max_waiting_tokens}", wait)
        self._check_bytes(self.waiting_bytes, body_bytes, wait)
        max_wait = math.inf if timeout is None else timeout
        if limits.max_queue_wait is not None and self.waiting_requests >= limits.always_admitted:
            max_wait = min(max_wait, limits.max_queue_wait)
        self._bound(wait, max_wait)

    def rejection(self) -> Overloaded | None:
        """Return the error that check() raises for a prompt of unknown length, None if it raises none.

        Returns the error of REJECTION_CACHE_SECONDS ago again where the queue has become no shorter since.
        """
        now, waiting = self.now, (self.waiting_requests, self.waiting_tokens, self.waiting_bytes)
        if self._cached_rejection is not None:
            until, then, error = self._cached_rejection
            if now < until and all(map(ge, waiting, then)):
                self._rejection_rate.record(now)
                return error
        try:
            self.check()
        except Overloaded as error:
            error = error.with_traceback(None)
            self._cached_rejection = now + REJECTION_CACHE_SECONDS, waiting, error
            return error
        return None

    def check_wait(self, timeout: float, num_before: int) -> None:
        """Raise Overloaded if a request behind `num_before` others would wait longer than `timeout`."""
        self._bound(self._expected_wait(min(num_before, self.waiting_requests - 1)), timeout)

    def _bound(self, wait: float, max_wait: float) -> None:
        if wait > max_wait:
            raise self._rejected(
                f"the expected queue wait is {wait:.1f} s, the limit is {max_wait:g} s", wait - max_wait
            )

    @property
    def expected_wait(self) -> float:
        """Seconds until all waiting requests have their first token; 0 while unknown."""
        return self._expected_wait(self.waiting_requests)

    def _expected_wait(self, waiting: int) -> float:
        engine_keeps_waiting, free = self._update_rates()
        now = self.now
        if not waiting:
            return 0.0
        num_beyond = max(0.0, waiting - free)
        wait = num_beyond / self._finish_rate.rate(now) if num_beyond else 0.0
        if engine_keeps_waiting and num_beyond < waiting:
            return wait + (waiting - num_beyond) / self._start_rate.rate(now)
        return wait if engine_keeps_waiting or num_beyond else self._recent_wait(now)

    def weigh(self, old_tokens: int, tokens: int) -> None:
        """Change a waiting request's tokens; for permits. Raises Overloaded, and then nothing has changed."""
        others, limit = self.waiting_tokens - old_tokens, self._limits.max_waiting_tokens
        if self.waiting_requests > 1 and others + tokens > limit:
            message = f"{others} prompt tokens wait and this request has {tokens}, the limit is {limit}"
            raise self._rejected(message, self.expected_wait)
        self.waiting_tokens = others + tokens

    def weigh_body(self, old_bytes: int, body_bytes: int) -> None:
        """Change the size of a waiting request's body; for permits. Raises Overloaded, and nothing has changed."""
        others = self.waiting_bytes - old_bytes
        if self.waiting_requests > 1:
            self._check_bytes(others, body_bytes, self.expected_wait)
        self.waiting_bytes = others + body_bytes

    def _check_bytes(self, waiting: int, body_bytes: int, wait: float) -> None:
        if waiting + body_bytes > (limit := self._limits.max_waiting_bytes):
            message = f"request bodies of {waiting} bytes wait and this one has {body_bytes}, the limit is {limit}"
            raise self._rejected(message, wait)

    def on_running(self, permit: Permit, tokens: int, body_bytes: int, waited: float) -> None:
        """Count a request as running after `waited` seconds; for permits."""
        now = self.now
        self._start_rate.record(now)
        self._waits.append((now, waited))
        self.running_requests += 1
        self.on_abandoned(permit, tokens, body_bytes)

    def on_abandoned(self, permit: Permit, tokens: int, body_bytes: int) -> None:
        """Remove a request from the queue; for permits."""
        del self._waiting[permit]
        self.waiting_requests -= 1
        self.waiting_tokens -= tokens
        self.waiting_bytes -= body_bytes
        self._update_rates()

    def on_finished(self, *, makes_room: bool) -> None:
        """Count a running request as finished; for permits."""
        self.running_requests -= 1
        if makes_room:
            self._finish_rate.record(self.now)
        self._update_rates()

    def close(self) -> None:
        """Count an open request as ended; for permits. Without open requests the engine has none waiting."""
        self.open_requests -= 1
        if not self.open_requests:
            self.engine_counts = (0, 0)
        self._update_rates()

    def _update_rates(self) -> tuple[bool, float]:
        """Update both rates' clocks; return whether the engine keeps requests waiting, and its free slots.

        When many requests end and start at once, this count follows one by one, so the engine's counts come first.
        """
        now, waiting = self.now, self.waiting_requests
        num_waiting, num_running = self.engine_counts
        engine_keeps_waiting = num_waiting > 0
        is_full = engine_keeps_waiting and num_running >= self.max_running
        free = 0.0 if is_full else max(0.0, self.max_running - self.running_requests)
        self._finish_rate.run(now, matters=waiting > free)
        self._start_rate.run(now, matters=engine_keeps_waiting and not is_full and waiting > 0)
        return engine_keeps_waiting, free

    def _recent_wait(self, now: float) -> float:
        while self._waits and self._waits[0][0] < now - RECENT_SECONDS:
            self._waits.popleft()
        return sum(waited for _, waited in self._waits) / len(self._waits) if self._waits else 0.0

    def stream_interval(self) -> float:
        """Return the seconds between two writes to a stream: 0.1 ms for each rejection a second.

        Rejections are cheap, and still take time from admitted requests; a stream that is written less often, with
        more at once, recovers most of it.
        """
        return min(INTERVAL_SECONDS_PER_REJECTION * self._rejection_rate.rate(self.now), MAX_INTERVAL_SECONDS)

    def _rejected(self, reason: str, after: float) -> Overloaded:
        self._rejection_rate.record(self.now)
        return Overloaded(f"server overloaded: {reason}", retry_after=min(max(after, 1.0), MAX_RETRY_SECONDS))
