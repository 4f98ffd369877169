"""Roster: who is in line, who rides in which slot, and the one door through which they leave.

open ──► held ──join_line──► line ──take_seat──► running ──finish──► gone
                               ▲                    │
                               └──────preempt───────┘
"""

from collections.abc import Iterable

from chairlift.core.errors import ChairliftError
from chairlift.core.request import FinishReason, Output, Timeline, TokenLogprob
from chairlift.engine.config import SchedulerConfig
from chairlift.engine.kv.kv_cache_manager import Hit, KVCache
from chairlift.engine.scheduler.waiting_queue.base import make_line
from chairlift.engine.sequence import Sequence, SequenceKey, Status
from chairlift.engine.sequence_group import Family
from chairlift.engine.stats import Counters
from chairlift.engine.timeline import WaitClock


class Roster:
    """The lists of one engine; decides nothing.

    Attributes:
        line: who waits, in the policy's order.
        running: who rides, by arrival, in the order in which they boarded.
        sequences: everybody who is open, by key.
        families: requests that are open, by id.
        wait_clock: why the line stands still.
        counters: totals.
        num_grammars: how many of those who are open have one.
        released: slots that the runner has not been told to forget.
        ended: last Outputs that nobody has fetched yet.
        waiting_tokens: tokens in line, still to be computed.
    """

    def __init__(self, config: SchedulerConfig, cache: KVCache) -> None:
        self._seats = config.seats
        self._cache = cache
        self.line = make_line(config, cache)
        self.running: dict[int, Sequence] = {}
        self.sequences: dict[SequenceKey, Sequence] = {}
        self.families: dict[str, Family] = {}
        self.wait_clock = WaitClock()
        self.counters = Counters()
        self.num_grammars = 0
        self.released: list[int] = []
        self.ended: list[Output] = []
        self.waiting_tokens = 0
        self._free_slots = list(reversed(range(config.seats)))

    def open(self, family: Family, now: float) -> None:
        """Take in a request; one choice of it joins the line, the others are held back until it has read the prompt."""
        self.families[family.request.request_id] = family
        held = set(family.held)
        for sequence in family.open.values():
            self.sequences[sequence.key] = sequence
            self.num_grammars += sequence.grammar is not None
            if sequence in held:
                sequence.status = Status.HELD
            else:
                self.join_line(sequence, now)

    def call_held(self, family: Family, now: float) -> None:
        """Let those join the line who were held back and need not be any more."""
        for sequence in family.boards_next():
            self.join_line(sequence, now)

    def match(self, sequence: Sequence) -> Hit:
        """Return what of a waiting sequence is computed already: in the cache, or by another choice of its request."""
        if sequence.wants_scores:
            return self._cache.nothing
        hit = self._cache.match(sequence.block_hashes, len(sequence.token_ids))
        family = self.families[sequence.name]
        source = family.source(sequence) if len(family.open) > 1 else None
        if source is not None and hit.num_tokens < sequence.num_prompt - 1:
            assert source.table is not None
            fork = self._cache.fork(source.table, sequence.num_prompt - 1)
            return fork if fork.num_tokens > hit.num_tokens else hit
        return hit

    def join_line(self, sequence: Sequence, now: float) -> None:
        """Put a sequence in line, at its place of arrival."""
        sequence.status = Status.WAITING
        sequence.diary.joined(self.wait_clock, now)
        self.line.add(sequence)
        self.waiting_tokens += len(sequence.token_ids)

    def _leave_line(self, sequence: Sequence, now: float) -> None:
        sequence.diary.left(self.wait_clock, now)
        self.line.remove(sequence)
        self.waiting_tokens -= len(sequence.token_ids)

    def take_seat(self, sequence: Sequence, now: float) -> None:
        """Move a sequence from the line to those that ride; its table is open already."""
        self._leave_line(sequence, now)
        sequence.slot = self._free_slots.pop()
        sequence.known = False
        sequence.status = Status.RUNNING
        sequence.waiting_for = None
        sequence.diary.note("scheduled", now)
        self.running[sequence.arrival] = sequence

    def preempt(self, sequence: Sequence, now: float) -> None:
        """Send a riding sequence back to its place in line; what it computed may still be found in the cache."""
        self._release(sequence)
        sequence.ride += 1
        sequence.num_scheduled = sequence.num_computed = 0
        sequence.num_preemptions += 1
        sequence.prefix_steps = 0
        if self._cache.config.enable_prefix_caching:
            sequence.name_blocks(self._cache.config.block_size)
        self.counters.preemptions += 1
        sequence.diary.note("preempted", now)
        self.join_line(sequence, now)

    def give_up(self, sequence: Sequence, error: ChairliftError, now: float) -> None:
        """End a sequence that cannot get on, in the middle of a step; its last Output is fetched with the next ones."""
        self.ended.append(self.finish(sequence, FinishReason.ERROR, now, error=error))

    def _release(self, sequence: Sequence) -> None:
        """The one door: blocks and slot leave a riding sequence."""
        assert sequence.table is not None
        del self.running[sequence.arrival]
        self._cache.release(sequence.table, sequence.block_hashes)
        sequence.table = None
        sequence.milestone = 0
        self.released.append(sequence.slot)
        self._free_slots.append(sequence.slot)
        sequence.slot = -1

    def finish(
        self, sequence: Sequence, reason: FinishReason, now: float, *, error: ChairliftError | None = None,
        tokens: tuple[int, ...] = (), logprobs: tuple[TokenLogprob, ...] = (), alone: bool = False,
        prompt_logprobs: tuple[TokenLogprob, ...] = (),
    ) -> Output:  # fmt: skip
        """End a choice wherever it is and return its last Output.

        An error or an abort ends all choices of the request, unless this one is to end `alone`.
        """
        family, name = self.families[sequence.name], sequence.name
        timeline = self._leave(family, sequence, reason, error, now)
        if family.open and not alone and (reason is FinishReason.ERROR or reason is FinishReason.ABORT):
            for other in list(family.open.values()):
                self._leave(family, other, reason, error, now)
        usage = None
        if not family.open:
            usage = family.usage()
            del self.families[name]
            self.counters.finished(reason)
        else:
            self.call_held(family, now)
        return Output(name, tokens, logprobs, reason, error, usage, timeline, sequence.index, prompt_logprobs)

    def _leave(
        self, family: Family, sequence: Sequence, reason: FinishReason, error: ChairliftError | None, now: float
    ) -> Timeline:
        """Take one choice out of every list."""
        if sequence.status is Status.RUNNING:
            self._release(sequence)
        elif sequence.status is Status.WAITING:
            self._leave_line(sequence, now)
        else:
            family.held.remove(sequence)
        del self.sequences[sequence.key]
        self.num_grammars -= sequence.grammar is not None
        family.left(sequence)
        sequence.status = Status.FINISHED
        sequence.finish_reason, sequence.error = reason, error
        sequence.diary.note("finished", now, reason if error is None else error.code)
        return sequence.diary.timeline()

    # -- proof -----------------------------------------------------------------------------------------------------

    def check(self) -> list[str]:
        """Prove that everybody is in one list, has a seat or none, and counters in order; returns what is wrong."""
        return [*self._check_lists(), *self._check_counters(self.sequences.values())]

    def _check_lists(self) -> list[str]:
        found = []
        slots = sorted([*self._free_slots, *(sequence.slot for sequence in self.running.values())])
        if slots != list(range(self._seats)):
            found.append(f"slots are not each free or taken once: {slots}")
        waiting = {sequence.key for sequence in self.line}
        riding = {sequence.key for sequence in self.running.values()}
        held = {sequence.key for family in self.families.values() for sequence in family.held}
        everywhere = len(waiting) + len(riding) + len(held)
        if everywhere != len(waiting | riding | held) or waiting | riding | held != set(self.sequences):
            found.append(f"{len(waiting)} wait, {len(riding)} ride, {len(held)} are held of {len(self.sequences)} open")
        if len(waiting) != len(self.line):
            found.append(f"the line counts {len(self.line)} and holds {len(waiting)}")
        known = {sequence.key for family in self.families.values() for sequence in family.open.values()}
        if known != set(self.sequences):
            found.append(f"{len(known)} choices are open in {len(self.families)} requests of {len(self.sequences)}")
        return found

    def _check_counters(self, sequences: Iterable[Sequence]) -> list[str]:
        found = []
        for sequence in sequences:
            name, riding = sequence.key, sequence.status is Status.RUNNING
            if not 0 <= sequence.num_computed <= sequence.num_scheduled <= sequence.num_seen:
                counters = f"{sequence.num_computed} <= {sequence.num_scheduled} <= {sequence.num_seen}"
                found.append(f"{name}: counters out of order, not 0 <= {counters}")
            if riding != (sequence.table is not None) or riding != (sequence.slot >= 0):
                found.append(f"{name}: {sequence.status.name} with table {sequence.table} and slot {sequence.slot}")
            if sequence.table is not None and sequence.num_scheduled > sequence.table.capacity:
                found.append(f"{name}: {sequence.num_scheduled} tokens scheduled into {sequence.table.capacity}")
            if not riding and sequence.num_scheduled:
                found.append(f"{name}: waits with {sequence.num_scheduled} tokens scheduled")
        return found
