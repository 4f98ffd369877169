"""Conversations: simulated sessions whose prompts grow turn by turn, and the loads to compare policies on."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count
from math import inf, log1p
from random import Random

from chairlift.bench.fleet_simulation.sim_request_and_interfaces import SimRequest
from chairlift.router.prompt_prefix_and_length import prompt_prefix

VOCAB_SIZE = 10_000

DEFAULT_CACHE_TOKENS = 64_000
"""Tokens in the KV cache of a simulated replica: 1.5 GB for a model of 135 million parameters in 16 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationLoad:
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

    def with_cache_pressure(self, pressure: float, cache_tokens: int) -> "ConversationLoad":
        """Return the load with a working set of `pressure` times a replica's cache, at the same rate of requests.

        It has more system prompts, and more sessions are open at a time because their users think longer. A load that
        repeats nothing stays as it is.
        """
        if not self.working_set_tokens:
            return self
        factor = pressure * cache_tokens / self.working_set_tokens
        system_prompts = max(round(self.system_prompts * factor), min(self.system_prompts, 1))
        return replace(self, system_prompts=system_prompts, think_seconds=self.think_seconds * factor)


SHARED = ConversationLoad(
    sessions=240, sessions_per_second=1.2, turns=5, system_prompts=24, system_tokens=512, user_tokens=256,
    answer_tokens=24, think_seconds=8.0,
)  # fmt: skip
"""Conversations of several turns under a few system prompts, at about half of the capacity of eight replicas.

All that later prompts repeat fits into the cache of each replica (0.6 of it), so any replica has the system prompts.
"""

HALF_OF_ALL_CACHES = 4.0
"""Cache pressure at which the caches of eight replicas hold what is repeated twice, and one of them a quarter of it."""

UNSHARED = ConversationLoad(
    sessions=900, sessions_per_second=5.0, turns=1, system_prompts=0, system_tokens=0, user_tokens=768,
    answer_tokens=24, think_seconds=0.0,
)  # fmt: skip
"""Single prompts that have nothing in common, at about half of the capacity."""

SATURATED = ConversationLoad(
    sessions=240, sessions_per_second=2.4, turns=5, system_prompts=24, system_tokens=512, user_tokens=256,
    answer_tokens=24, think_seconds=8.0,
)  # fmt: skip
"""The conversations of SHARED at twice the rate, which is near or above what the replicas serve without cache hits."""

MANY_SESSIONS = replace(SHARED, sessions=720).with_cache_pressure(HALF_OF_ALL_CACHES, DEFAULT_CACHE_TOKENS)
"""The rate of requests of SHARED from many sessions: 157 system prompts, and 52 s between the turns of a session."""

CONVERSATION_LOADS = {"shared": SHARED, "many_sessions": MANY_SESSIONS, "unshared": UNSHARED, "saturated": SATURATED}


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


def conversations(load: ConversationLoad, seed: int) -> Iterator[Conversation]:
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


class ConversationSource:
    """Sends the turns of conversations: each one some time after the answer before it; see RequestSource."""

    def __init__(self, load: ConversationLoad, seed: int) -> None:
        self._think_seconds, self._order = load.think_seconds, count()
        self._due: list[tuple[float, int, Conversation]] = []
        self._open: dict[int, Conversation] = {}
        self._num_requests = 0
        for each in conversations(load, seed):
            heappush(self._due, (each.starts_at, next(self._order), each))

    @property
    def next_at(self) -> float:
        """Time of the next turn whose conversation waits for no answer."""
        return self._due[0][0] if self._due else inf

    def take(self) -> SimRequest:
        """Return the request of that turn."""
        at, _, conversation = heappop(self._due)
        prompt, output_tokens = conversation.next_prompt()
        index, self._num_requests = self._num_requests, self._num_requests + 1
        self._open[index] = conversation
        return SimRequest(
            index, at, len(prompt), output_tokens, session_key=conversation.session_key, prompt_token_ids=prompt,
            prefix=prompt_prefix({"prompt": list(prompt)}, model="simulated"),
        )  # fmt: skip

    def record_end(self, request: SimRequest, now: float) -> None:
        """Append the answer; the next turn is due after the time to think."""
        conversation = self._open.pop(request.index)
        conversation.token_ids += request.output_token_ids
        if conversation.messages:
            heappush(self._due, (now + self._think_seconds, next(self._order), conversation))
