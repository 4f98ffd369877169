"""Line: who waits for the engine, how many may, and for how long.

The line's length is known to the door itself: a request waits from the moment it is admitted until the engine's first
news of it. How long whoever comes now would wait has three parts:

beyond the seats   as many as have to end before; so many end in a second
into free seats    only where the engine leaves people in line all the same (a step's budget, memory); so many start in
                   a second. Else they board with the next step
in the door        as long as others waited just now, where the engine leaves nobody in line
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from chairlift.core.clock import Clock, SystemClock
from chairlift.core.errors import ConfigError, Overloaded
from chairlift.core.validation import format_value

PACE_SECONDS = 30.0
"""That a pace is measured over: those who board together end together, so several batches have to be in it."""

PACE_EVENTS = 4096
"""No more of them are remembered."""

LEAST_EVENTS = 8
"""Where fewer are known it is taken that so many would come now, which is too fast by and by less."""

FORGET_SECONDS = 300.0
"""After which what is known of a pace is too old."""

FLOOD_SECONDS = 0.5
"""By which a rate of refusals falls to a third when they end."""

SPACING_SECONDS = 0.0001
LONGEST_SPACING_SECONDS = 0.25
"""See Admission.spacing."""

RECENT_WAITS = 64
RECENT_SECONDS = 10.0
LONGEST_RETRY_SECONDS = 60.0

REPEAT_SECONDS = 0.01
"""For which a refusal is given again where the line is no shorter: of a flood many come in that time."""


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
                raise ConfigError(f"{name} must be at least 0, got {format_value(getattr(self, name))}", option=name)


class Pace:
    """How many a second, on a clock that goes only while it matters; time in which nothing happened counts.

    So one busy time begins with what is known of the last.
    """

    def __init__(self) -> None:
        self._moments: deque[float] = deque(maxlen=PACE_EVENTS)  # by its clock
        self._before = 0.0  # on its clock, when it was stopped
        self._since: float | None = None
        self._stopped = 0.0

    def run(self, now: float, *, matters: bool) -> None:
        """Let the clock go from this time on, or stop it."""
        if matters and self._since is None:
            if now - self._stopped > FORGET_SECONDS:
                self._moments.clear()
                self._before = 0.0
            self._since = now
        elif not matters and self._since is not None:
            self._before, self._since, self._stopped = self._clock(now), None, now

    def note(self, now: float) -> None:
        """It happened; what happens while the clock is stopped says nothing."""
        if self._since is not None:
            self._moments.append(self._clock(now))

    def rate(self, now: float) -> float:
        """So many a second."""
        clock, moments = self._clock(now), self._moments
        while moments and moments[0] < clock - PACE_SECONDS:
            moments.popleft()
        begin = moments[0] if len(moments) == PACE_EVENTS else max(0.0, clock - PACE_SECONDS)
        seconds = clock - begin
        return max(len(moments), LEAST_EVENTS) / seconds if seconds > 0 else math.inf

    def _clock(self, now: float) -> float:
        return self._before if self._since is None else self._before + now - self._since


class Flood:
    """How many a second, of late: what was an instant ago counts most."""

    def __init__(self) -> None:
        self._rate, self._at = 0.0, -math.inf

    def note(self, now: float) -> None:
        """It happened once more."""
        self._rate = self.rate(now) + 1.0 / FLOOD_SECONDS
        self._at = now

    def rate(self, now: float) -> float:
        """So many a second."""
        return self._rate * math.exp((self._at - now) / FLOOD_SECONDS) if self._rate else 0.0


class Permit:
    """The right of one request to be here: it waits, rides, and is over; each of these once, however often it is told.

    Whoever has one must call end().
    """

    def __init__(self, line: "Admission", tokens: int, spent: Callable[[int], None] | None) -> None:
        self._line = line
        self._tokens = tokens
        self._spent = spent
        self._since = line.now
        self._before = line.waiting_requests - 1  # this one is counted
        self._waits = True
        self._rides = self._is_over = False

    def take_on(self, timeout: float | None, spent: Callable[[int], None]) -> None:
        """Know more of a request that was let in by its head: what it may take, and who hears at the end what was used.

        Raises Overloaded, and then nothing has changed, where it is expected to wait for longer than it may take.
        """
        if self._waits and timeout is not None:
            self._line.check_wait(timeout, self._before)
        self._spent = spent

    def started(self) -> None:
        """The engine works for it: it does not wait any more."""
        if self._waits:
            self._waits = False
            self._rides = True
            self._line.board(self._tokens, self._line.now - self._since)

    def left(self, *, makes_room: bool = True) -> None:
        """The engine has done its work, though its client may still read."""
        if self._rides:
            self._rides = False
            self._line.get_off(makes_room=makes_room)

    def weigh(self, tokens: int) -> None:
        """Its prompt has so many tokens, as is known now. Raises Overloaded when there is no room for them."""
        if self._waits:
            self._line.weigh(self._tokens, tokens)
            self._tokens = tokens

    def end(self, used_tokens: int = 0, *, makes_room: bool = True) -> None:
        """The request is over, having used so many tokens. The end of all at once, as of an engine, makes no room."""
        if self._is_over:
            return
        self._is_over = True
        if self._waits:
            self._waits = False
            self._line.give_up(self._tokens)
        self.left(makes_room=makes_room)
        self._line.close()
        if self._spent is not None:
            self._spent(used_tokens)


class Admission:
    """The line before the engine, counted. Belongs to one event loop.

    Attributes:
        waiting_requests: admitted, and the engine has said nothing of them yet.
        waiting_tokens: of their prompts.
        riding_requests: that the engine works for.
        open_requests: admitted and not over.
        engine: how many it has left in line, and has on board, after its last step; another thread may set it.
        seats: how many the engine takes on board, as far as that is known.
    """

    def __init__(self, limits: AdmissionLimits, clock: Clock | None = None) -> None:
        self._limits = limits
        self._clock = clock or SystemClock()
        self._ends, self._starts = Pace(), Pace()
        self._refusals = Flood()
        self._refusal: tuple[float, int, int, Overloaded] | None = None  # until when, while such a line waits, and what
        self._waits: deque[tuple[float, float]] = deque(maxlen=RECENT_WAITS)  # of those who started: when, how long
        self.engine = (0, 0)
        self.seats: float = math.inf
        self.waiting_requests = 0
        self.waiting_tokens = 0
        self.riding_requests = 0
        self.open_requests = 0

    @property
    def now(self) -> float:
        """By its clock."""
        return self._clock.now()

    def renew(self, limits: AdmissionLimits) -> None:
        """Hold to other limits from now on; who is in line stays there."""
        self._limits, self._refusal = limits, None

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
        self._look()
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
        self._bound(wait, longest)

    def refusal(self) -> Overloaded | None:
        """Return what check() raises where no prompt is known yet.

        What it raised a moment ago is returned again where the line has become no shorter since, whatever else has.
        """
        now = self.now
        if self._refusal is not None:
            until, requests, tokens, error = self._refusal
            if now < until and self.waiting_requests >= requests and self.waiting_tokens >= tokens:
                self._refusals.note(now)
                return error
        try:
            self.check()
        except Overloaded as error:
            error = error.with_traceback(None)
            self._refusal = now + REPEAT_SECONDS, self.waiting_requests, self.waiting_tokens, error
            return error
        return None

    def check_wait(self, timeout: float, before: int) -> None:
        """Raise Overloaded where one that had so many before it in line would wait for longer; permits call it."""
        self._bound(self._expected_wait(min(before, self.waiting_requests - 1)), timeout)

    def _bound(self, wait: float, longest: float) -> None:
        if wait > longest:
            raise self._refused(f"the wait is about {wait:.1f} s, it may be {longest:g} s", wait - longest)

    @property
    def expected_wait(self) -> float:
        """Seconds that who comes now waits for the first token of all who are before it; 0 while nothing is known."""
        return self._expected_wait(self.waiting_requests)

    def _expected_wait(self, waiting: int) -> float:
        stands, free = self._look()
        now = self.now
        if not waiting:
            return 0.0
        beyond = max(0.0, waiting - free)
        wait = beyond / self._ends.rate(now) if beyond else 0.0
        if stands and beyond < waiting:
            return wait + (waiting - beyond) / self._starts.rate(now)
        return wait if stands or beyond else self._recent_wait(now)

    def weigh(self, before: int, tokens: int) -> None:
        """Count other tokens for one who waits; permits call it. Raises Overloaded, and then nothing has changed."""
        others, limit = self.waiting_tokens - before, self._limits.waiting_tokens
        if self.waiting_requests > 1 and others + tokens > limit:
            said = f"{others} prompt tokens wait and {tokens} came, the limit is {limit}"
            raise self._refused(said, self.expected_wait)
        self.waiting_tokens = others + tokens

    def board(self, tokens: int, waited: float) -> None:
        """Count one on board who has waited so many seconds; permits call it."""
        now = self.now
        self._starts.note(now)
        self._waits.append((now, waited))
        self.riding_requests += 1
        self.give_up(tokens)

    def give_up(self, tokens: int) -> None:
        """Count one out of the line; permits call it."""
        self.waiting_requests -= 1
        self.waiting_tokens -= tokens
        self._look()

    def get_off(self, *, makes_room: bool) -> None:
        """Count one off board; permits call it."""
        self.riding_requests -= 1
        if makes_room:
            self._ends.note(self.now)
        self._look()

    def close(self) -> None:
        """Count one that is over; permits call it. Where nothing is open the engine leaves nobody in line."""
        self.open_requests -= 1
        if not self.open_requests:
            self.engine = (0, 0)
        self._look()

    def _look(self) -> tuple[bool, float]:
        """Return whether the engine leaves people in line, and how many seats are free; let the clocks go by that.

        When many end at once, and others begin, the door hears of it one by one; so the engine's word goes first.
        """
        now, waiting = self.now, self.waiting_requests
        left_behind, on_board = self.engine
        stands = left_behind > 0
        is_full = stands and on_board >= self.seats
        free = 0.0 if is_full else max(0.0, self.seats - self.riding_requests)
        self._ends.run(now, matters=waiting > free)
        self._starts.run(now, matters=stands and not is_full and waiting > 0)
        return stands, free

    def _recent_wait(self, now: float) -> float:
        while self._waits and self._waits[0][0] < now - RECENT_SECONDS:
            self._waits.popleft()
        return sum(waited for _, waited in self._waits) / len(self._waits) if self._waits else 0.0

    def spacing(self) -> float:
        """Return the seconds for which no stream shall get news: a tenth of a millisecond for each refusal a second.

        They are as cheap as they can be, and still take from the work for those who were let in; a stream that is
        written less often, and more at once, gives most of that back.
        """
        return min(SPACING_SECONDS * self._refusals.rate(self.now), LONGEST_SPACING_SECONDS)

    def _refused(self, why: str, after: float) -> Overloaded:
        self._refusals.note(self.now)
        return Overloaded(f"too much is asked at once: {why}", retry_after=min(max(after, 1.0), LONGEST_RETRY_SECONDS))
