"""Line: who waits for the engine, how many may, and for how long.

The line's length is known to the door itself: a request waits from the moment it is admitted until the engine's first
news of it. How fast the line moves is measured while there is one, and apart for the two kinds of it:

flowing   whoever comes boards with the next step; the pace is that of the arrivals, and says nothing of a full engine
standing  the engine has left somebody in line, or must do so; the pace is that in which others end
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from chairlift.core.checks import shown
from chairlift.core.clock import Clock, SystemClock
from chairlift.core.errors import ConfigError, Overloaded

PACE_STARTS = 128
"""Starts over which the pace of the line is measured."""

STANDING_SECONDS = 30.0
"""That the pace of a line that stands is measured over: those who are on board often end together."""

STANDING_ENDS = 4096
"""No more of these are remembered."""

LEAST_STARTS = 8
"""Below that nothing is known of the pace."""

LONGEST_RETRY_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """Bounds of the line in front of the engine.

    Attributes:
        waiting_requests: that wait for their first token.
        waiting_tokens: of their prompts together.
        wait_seconds: that somebody may be expected to wait; longer is refused at once.
        short_line: requests that may wait whatever time that takes: few people at a slow model wait rather than being
            sent away, while a line of hundreds would take long to become normal again.
    """

    waiting_requests: int = 1024
    waiting_tokens: int = 1_000_000
    wait_seconds: float = 2.0
    short_line: int = 16

    def __post_init__(self) -> None:
        for name in ("waiting_requests", "waiting_tokens", "wait_seconds", "short_line"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} must be at least 0, got {shown(getattr(self, name))}", option=name)


class Pace:
    """How many requests a second come out of the line, measured over the time in which there was one.

    What is known fades with every line that ends: where one alone may wait nothing new is measured.
    """

    def __init__(self) -> None:
        self._gaps: deque[float] = deque(maxlen=PACE_STARTS)
        self._last: float | None = None

    def started(self, now: float, *, is_line: bool) -> None:
        """One came out at this time; `is_line` says whether others waited behind it."""
        if self._last is not None:
            self._gaps.append(now - self._last)
        self._last = now
        if not is_line:
            self.emptied()

    def pause(self) -> None:
        """The time until the next one is no pace."""
        self._last = None

    def emptied(self) -> None:
        """Nobody waits any more."""
        self.pause()
        if self._gaps:
            self._gaps.popleft()

    @property
    def rate(self) -> float | None:
        """Requests a second; None while too few are known."""
        return _per_second(len(self._gaps), sum(self._gaps)) if len(self._gaps) >= LEAST_STARTS else None


class StandingPace:
    """How many requests a second end while a line stands: so many can board, whatever the line waits for.

    Those who began together end together, so it is measured over many seconds, and time in which nobody ended counts.
    Its clock goes only while a line stands: the next one begins with what is known of the last.
    """

    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=STANDING_ENDS)
        self._before = 0.0  # on its clock, when it was stopped
        self._since: float | None = None

    def run(self, now: float, *, stands: bool) -> None:
        """Let the clock go from this time on, or stop it."""
        if stands and self._since is None:
            self._since = now
        elif not stands and self._since is not None:
            self._before, self._since = self._clock(now), None

    def ended(self, now: float) -> None:
        """One ended at this time."""
        self._ends.append(self._clock(now))

    def rate(self, now: float) -> float:
        """Requests a second; where hardly any ended yet, what it would be if some did so now, and so too high."""
        clock, ends = self._clock(now), self._ends
        while ends and ends[0] < clock - STANDING_SECONDS:
            ends.popleft()
        begin = ends[0] if len(ends) == STANDING_ENDS else max(0.0, clock - STANDING_SECONDS)
        return _per_second(max(len(ends), LEAST_STARTS), clock - begin)

    def _clock(self, now: float) -> float:
        return self._before if self._since is None else self._before + now - self._since


def _per_second(starts: int, seconds: float) -> float:
    return starts / seconds if seconds > 0 else math.inf


class Permit:
    """The right of one request to be here; given back exactly once, however often end() is called."""

    def __init__(self, line: "Admission", tokens: int, spent: Callable[[int], None] | None) -> None:
        self._line = line
        self._tokens = tokens
        self._spent = spent
        self._waits = True
        self._is_over = False

    def started(self) -> None:
        """The engine has begun with it: it does not wait any more."""
        if self._waits:
            self._waits = False
            self._line.leave(self._tokens, has_started=True)

    def weigh(self, tokens: int) -> None:
        """Its prompt has so many tokens, as is known now. Raises Overloaded when there is no room for them."""
        if self._waits:
            self._line.weigh(self._tokens, tokens)
            self._tokens = tokens

    def end(self, used_tokens: int = 0) -> None:
        """The request is over, having used so many tokens."""
        if self._is_over:
            return
        self._is_over = True
        if self._waits:
            self._waits = False
            self._line.leave(self._tokens, has_started=False)
        else:
            self._line.made_room()
        self._line.open_requests -= 1
        if self._spent is not None:
            self._spent(used_tokens)


class Admission:
    """The line before the engine, counted. Belongs to one event loop.

    Attributes:
        waiting_requests: admitted, and the engine has said nothing of them yet.
        waiting_tokens: of their prompts.
        open_requests: admitted and not over.
        is_standing: whether the engine has left somebody in line at its last step; another thread may set it.
        seats: how many the engine takes on board, as far as that is known.
    """

    def __init__(self, limits: AdmissionLimits, clock: Clock | None = None) -> None:
        self._limits = limits
        self._clock = clock or SystemClock()
        self._flowing, self._standing = Pace(), StandingPace()
        self.is_standing = False
        self.seats: float = math.inf
        self.waiting_requests = 0
        self.waiting_tokens = 0
        self.open_requests = 0

    def renew(self, limits: AdmissionLimits) -> None:
        """Hold to other limits from now on; who is in line stays there."""
        self._limits = limits

    def admit(
        self, tokens: int, *, timeout: float | None = None, spent: Callable[[int], None] | None = None
    ) -> Permit:  # fmt: skip
        """Let a request with a prompt of so many tokens in; whoever gets the permit must end it.

        `spent` hears at the end what was used. Raises what check does.
        """
        self.check(tokens, timeout=timeout)
        self.waiting_requests += 1
        self.waiting_tokens += tokens
        self.open_requests += 1
        return Permit(self, tokens, spent)

    def check(self, tokens: int = 0, *, timeout: float | None = None) -> None:
        """Raise Overloaded where a request with a prompt of so many tokens would not be let in.

        An empty line takes everybody. A full one does not, and neither does one in which the wait is expected to be
        longer than the request's own timeout or, where it is no short one, than the limit.
        """
        if not self.waiting_requests:
            return
        limits, wait = self._limits, self.expected_wait
        if self.waiting_requests >= limits.waiting_requests:
            raise self._refused(f"{self.waiting_requests} requests wait, the limit is {limits.waiting_requests}", wait)
        if self.waiting_tokens + tokens > limits.waiting_tokens:
            waiting = f"{self.waiting_tokens} prompt tokens wait and {tokens} came"
            raise self._refused(f"{waiting}, the limit is {limits.waiting_tokens}", wait)
        longest = math.inf if self.waiting_requests < limits.short_line else limits.wait_seconds
        longest = longest if timeout is None else min(longest, timeout)
        if wait > longest:
            raise self._refused(f"the wait is about {wait:.1f} s, it may be {longest:g} s", wait - longest)

    @property
    def expected_wait(self) -> float:
        """Seconds that who comes now waits for the first token of all who are before it; 0 while nothing is known."""
        now = self._clock.now()
        if not self._stands(now):
            rate = self._flowing.rate
            return self.waiting_requests / rate if rate else 0.0
        beyond = self.waiting_requests if self.is_standing else self.open_requests - self.seats
        return beyond / self._standing.rate(now)

    def weigh(self, before: int, tokens: int) -> None:
        """Count other tokens for one who waits; permits call it. Raises Overloaded, and then nothing has changed."""
        others, limit = self.waiting_tokens - before, self._limits.waiting_tokens
        if self.waiting_requests > 1 and others + tokens > limit:
            said = f"{others} prompt tokens wait and {tokens} came, the limit is {limit}"
            raise self._refused(said, self.expected_wait)
        self.waiting_tokens = others + tokens

    def leave(self, tokens: int, *, has_started: bool) -> None:
        """Count one out of the line; permits call it."""
        now = self._clock.now()
        stood = self._stands(now)
        self.waiting_requests -= 1
        self.waiting_tokens -= tokens
        if stood:
            self._stands(now)  # not any more where it was the last one
        elif has_started:
            self._flowing.started(now, is_line=self.waiting_requests > 0)
        elif not self.waiting_requests:
            self._flowing.emptied()

    def made_room(self) -> None:
        """One that had started is over; permits call it."""
        now = self._clock.now()
        if self._stands(now):
            self._standing.ended(now)

    def _stands(self, now: float) -> bool:
        """Whether the line stands now."""
        stands = self.waiting_requests > 0 and (self.is_standing or self.open_requests > self.seats)
        self._standing.run(now, stands=stands)
        if stands:
            self._flowing.pause()
        return stands

    def _refused(self, why: str, after: float) -> Overloaded:
        return Overloaded(f"too much is asked at once: {why}", retry_after=min(max(after, 1.0), LONGEST_RETRY_SECONDS))
