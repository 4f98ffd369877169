"""Conversations: simulated sessions whose prompts grow turn by turn, and the loads to compare policies on."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import log1p
from random import Random

VOCAB_SIZE = 10_000

DEFAULT_CACHE_TOKENS = 64_000
"""Tokens in the KV cache of a simulated replica: 1.5 GB for a model of 135 million parameters in 16 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A stream of conversations; the numbers of tokens are means of uniform distributions of ± 50 %.

    Attributes:
        sessions: number of conversations.
        sessions_per_second: mean rate of their starts, a Poisson process.
        turns: number of turns of each.
        system_prompts: number of different system prompts, of which each conversation has one; 0 for none.
        system_tokens: tokens of a system prompt.
        user_tokens: tokens of a message of the user.
        answer_tokens: tokens of an answer.
        think_seconds: time between an answer and the next message.
    """

    sessions: int
    sessions_per_second: float
    turns: int
    system_prompts: int
    system_tokens: int
    user_tokens: int
    answer_tokens: int
    think_seconds: float

    @property
    def working_set_tokens(self) -> float:
        """Tokens that later prompts repeat: the system prompts, and the contexts that wait for their next turn."""
        waits = self.turns * (self.turns - 1) / 2  # a context waits once with 1, 2 ... turns - 1 messages and answers
        contexts = self.sessions_per_second * self.think_seconds * waits * (self.user_tokens + self.answer_tokens)
        return self.system_prompts * self.system_tokens + contexts

    def with_cache_pressure(self, pressure: float, cache_tokens: int) -> "Load":
        """Return the load with a working set of `pressure` times a replica's cache, at the same rate of requests.

        It has more system prompts, and more sessions are open at a time because their users think longer. A load that
        repeats nothing stays as it is.
        """
        if not self.working_set_tokens:
            return self
        factor = pressure * cache_tokens / self.working_set_tokens
        system_prompts = max(round(self.system_prompts * factor), min(self.system_prompts, 1))
        return replace(self, system_prompts=system_prompts, think_seconds=self.think_seconds * factor)


SHARED = Load(
    sessions=240, sessions_per_second=1.2, turns=5, system_prompts=24, system_tokens=512, user_tokens=256,
    answer_tokens=24, think_seconds=8.0,
)  # fmt: skip
"""Conversations of several turns under a few system prompts, at about half of the capacity of eight replicas.

All that later prompts repeat fits into the cache of each replica (0.6 of it), so any replica has the system prompts.
"""

HALF_OF_ALL_CACHES = 4.0
"""Cache pressure at which the caches of eight replicas hold what is repeated twice, and one of them a quarter of it."""

UNSHARED = Load(
    sessions=900, sessions_per_second=5.0, turns=1, system_prompts=0, system_tokens=0, user_tokens=768,
    answer_tokens=24, think_seconds=0.0,
)  # fmt: skip
"""Single prompts that have nothing in common, at about half of the capacity."""

SATURATED = Load(
    sessions=240, sessions_per_second=2.4, turns=5, system_prompts=24, system_tokens=512, user_tokens=256,
    answer_tokens=24, think_seconds=8.0,
)  # fmt: skip
"""The conversations of SHARED at twice the rate, which is near or above what the replicas serve without cache hits."""

MANY_SESSIONS = replace(SHARED, sessions=720).with_cache_pressure(HALF_OF_ALL_CACHES, DEFAULT_CACHE_TOKENS)
"""The rate of requests of SHARED from many sessions: 157 system prompts, and 52 s between the turns of a session."""

LOADS = {"shared": SHARED, "many_sessions": MANY_SESSIONS, "unshared": UNSHARED, "saturated": SATURATED}


@dataclass(slots=True)
class Conversation:
    """One session: its tokens so far and the messages that are still to come."""

    session_key: str
    starts_at: float
    token_ids: list[int]
    messages: list[list[int]]
    answer_lengths: list[int]

    def next_prompt(self) -> tuple[tuple[int, ...], int]:
        """Append the next message; return the prompt and the length of its answer."""
        self.token_ids += self.messages.pop(0)
        return tuple(self.token_ids), self.answer_lengths.pop(0)


def conversations(load: Load, seed: int) -> Iterator[Conversation]:
    """Yield the conversations of a load in the order of their starts; one seed gives the same ones."""
    rng = Random(f"conversations {seed}")
    systems = [_tokens(rng, load.system_tokens) for _ in range(load.system_prompts)]
    now = 0.0
    for number in range(load.sessions):
        now += -log1p(-rng.random()) / load.sessions_per_second
        yield Conversation(
            session_key=f"session-{number}", starts_at=now,
            token_ids=list(rng.choice(systems)) if systems else [],
            messages=[_tokens(rng, load.user_tokens) for _ in range(load.turns)],
            answer_lengths=[_around(rng, load.answer_tokens) for _ in range(load.turns)],
        )  # fmt: skip


def _around(rng: Random, mean: int) -> int:
    return rng.randint(max(1, mean // 2), max(1, mean * 3 // 2))


def _tokens(rng: Random, mean: int) -> list[int]:
    return [rng.randrange(VOCAB_SIZE) for _ in range(_around(rng, mean))]
