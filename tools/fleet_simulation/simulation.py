"""simulate_fleet: runs a load through a production routing policy and simulated replicas, and measures both.

A replica's step is simulated when no event before its start is left; its outputs become events at the step's end, so
that the router learns of them no earlier than it would.
"""

from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from chairlift.bench.report.percentiles import percentile
from chairlift.bench.simulation.scenario_loads import SMALL_CPU
from chairlift.bench.simulation.sim_step_model import SimStepModel
from chairlift.core.request import EngineOutput
from chairlift.router.policies.base import RoutingRequest
from chairlift.router.policies.registry import make_policy
from chairlift.router.prefix_index import PrefixIndex
from chairlift.router.prompt_prefix import PromptPrefix, prompt_prefix
from fleet_simulation.conversations import DEFAULT_CACHE_TOKENS, VOCAB_SIZE, Conversation, Load, conversations
from fleet_simulation.sim_replica import BLOCK_SIZE, SimReplica

REPORT_SECONDS = 1.0
"""Time between two load reports of a replica, which also come with the end of each answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """What is simulated.

    Attributes:
        policy: name of the routing policy.
        num_replicas: number of replicas.
        cache_tokens: tokens that the KV cache of each one holds.
        step_model: predicts the duration of a step.
        seed: seed of load and policy.
    """

    policy: str
    num_replicas: int = 8
    cache_tokens: int = DEFAULT_CACHE_TOKENS
    step_model: SimStepModel = SMALL_CPU
    seed: int = 0


@dataclass(slots=True)
class FleetResult:
    """Measurements of one simulated run; seconds are simulated ones."""

    ttft_seconds: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    seconds: float = 0.0
    num_requests: Counter[str] = field(default_factory=Counter)

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that the replicas had cached."""
        return self.cached_tokens / max(1, self.prompt_tokens)

    @property
    def mean_ttft(self) -> float:
        """Mean time to the first token in seconds."""
        return sum(self.ttft_seconds) / max(1, len(self.ttft_seconds))

    @property
    def p99_ttft(self) -> float:
        """99th percentile of the time to the first token in seconds."""
        return percentile(sorted(self.ttft_seconds), 99)


@dataclass(slots=True)
class _Turn:
    conversation: Conversation
    arrived_at: float
    prefix: PromptPrefix
    replica: SimReplica
    new_tokens: int
    answer: list[int] = field(default_factory=list)


Event = Conversation | tuple[SimReplica, list[EngineOutput]] | None
"""A turn of a conversation begins; a step ends; or the periodic load reports."""


def simulate_fleet(load: Load, options: FleetOptions) -> FleetResult:
    """Simulate a load to its end. Equal load and options give an equal result."""
    return _FleetRun(load, options).run_to_end()


class _FleetRun:
    """State of one simulation: the fleet, the router's knowledge, and the events to come."""

    def __init__(self, load: Load, options: FleetOptions) -> None:
        self._load, self._result = load, FleetResult()
        self._policy, self._index = make_policy(options.policy, options.seed), PrefixIndex()
        num_blocks = options.cache_tokens // BLOCK_SIZE
        names = [f"replica-{number:03}" for number in range(options.num_replicas)]
        self._replicas = {
            name: SimReplica(name, options.step_model, num_blocks, VOCAB_SIZE, options.seed + number)
            for number, name in enumerate(names)
        }
        self._incarnations = {name: replica.candidate.incarnation for name, replica in self._replicas.items()}
        self._open: dict[str, _Turn] = {}
        self._order, self._events = count(), list[tuple[float, int, Event]]()
        for each in conversations(load, options.seed):
            self._schedule(each.starts_at, each)
        self._schedule(REPORT_SECONDS, None)

    def run_to_end(self) -> FleetResult:
        while self._open or len(self._events) > 1:
            busy = [replica for replica in self._replicas.values() if not replica.is_idle]
            first = min(busy, key=lambda replica: replica.clock.now(), default=None)
            if first is not None and first.clock.now() < self._events[0][0]:
                outputs = first.step()
                self._schedule(first.clock.now(), (first, outputs))
            else:
                self._handle_event(*heappop(self._events))
        for replica in self._replicas.values():
            replica.stop()
        return self._result

    def _schedule(self, at: float, event: Event) -> None:
        heappush(self._events, (at, next(self._order), event))

    def _handle_event(self, now: float, number: int, event: Event) -> None:
        if event is None:
            for replica in self._replicas.values():
                replica.report_load()
            self._schedule(now + REPORT_SECONDS, None)
        elif isinstance(event, Conversation):
            self._route(event, f"request-{number}", now)
        else:
            for output in event[1]:
                self._handle_output(output, now)

    def _route(self, conversation: Conversation, request_id: str, now: float) -> None:
        prompt, answer_tokens = conversation.next_prompt()
        prefix = prompt_prefix({"prompt": list(prompt)}, model="simulated")
        request = RoutingRequest(
            request_id=request_id, session_key=conversation.session_key, prefix=prefix.hashes,
            prefix_tokens=prefix.token_counts, prompt_tokens=prefix.num_tokens,
            prefix_matches=self._index.match(prefix.hashes, self._incarnations),
        )  # fmt: skip
        candidates = [replica.candidate for replica in self._replicas.values()]
        replica = self._replicas[self._policy.pick(request, candidates, now).replica_id]
        new_tokens = prefix.num_tokens - request.matched_tokens(replica.candidate.replica_id)
        replica.count_open(1, new_tokens)
        self._index.record(replica.candidate.replica_id, replica.candidate.incarnation, prefix.hashes)
        self._result.num_requests[replica.candidate.replica_id] += 1
        self._open[request_id] = _Turn(conversation, now, prefix, replica, new_tokens)
        if outputs := replica.submit(request_id, prompt, answer_tokens, now):
            self._schedule(replica.clock.now(), (replica, outputs))

    def _handle_output(self, output: EngineOutput, now: float) -> None:
        turn = self._open[output.request_id]
        if output.token_ids and not turn.answer:
            self._result.ttft_seconds.append(now - turn.arrived_at)
            turn.replica.count_open(0, -turn.new_tokens)
        turn.answer += output.token_ids
        if output.usage is None:
            return
        assert output.error is None, output.error
        del self._open[output.request_id]
        turn.replica.count_open(-1, 0)
        turn.replica.report_load()
        candidate = turn.replica.candidate
        self._index.record(candidate.replica_id, candidate.incarnation, turn.prefix.extended(turn.answer))
        self._result.prompt_tokens += turn.prefix.num_tokens
        self._result.cached_tokens += output.usage.cached_tokens
        self._result.seconds = now
        turn.conversation.token_ids += turn.answer
        if turn.conversation.messages:
            self._schedule(now + self._load.think_seconds, turn.conversation)
