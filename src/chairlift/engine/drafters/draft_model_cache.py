"""DraftModelCache: the slots and KV blocks of a draft model, and what it has computed of each sequence.

The sequences that were drafted longest ago lose theirs when others need them. Full blocks stay cached under the
sequence's own hashes, so that an equal prefix, or a sequence that starts again, need not be computed.
"""

from collections.abc import Collection
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from chairlift.core.block_hash import BlockHash
from chairlift.core.errors import OutOfBlocks
from chairlift.engine.config import CacheConfig
from chairlift.engine.kv.block_table import BlockTable
from chairlift.engine.kv.kv_cache_manager import KVCacheManager, NewBlock
from chairlift.engine.runner.base import RunnerInfo
from chairlift.engine.sequence import Sequence

CACHED_BYTES = 128 << 20
"""Bytes of blocks that no sequence holds, above which they are used again before blocks that were never used."""

FIRST_DRAFTS = 4
"""Most drafts of a sequence that the draft model begins."""

MORE_DRAFTS = 2
"""Further drafts after some that were all confirmed; after others one more than were confirmed. Each is a step."""


@dataclass(slots=True, eq=False)
class DraftedSequence:
    """What the draft model has of a sequence.

    Attributes:
        slot: its slot in the draft model's runner.
        table: its blocks.
        num_computed: leading tokens of the sequence whose keys and values are in the blocks.
        written: drafts behind them whose keys and values are in the blocks, too.
        drafts: its newest drafts.
        draft_position: tokens that the sequence had then, -1 for none.
        most_drafts: upper bound of its next drafts.
        is_in_runner: whether the runner has its slot and blocks.
        new_blocks: blocks that the runner does not know yet, of a sequence in it.
    """

    slot: int
    table: BlockTable
    num_computed: int
    written: list[int] = field(default_factory=list)
    drafts: tuple[int, ...] = ()
    draft_position: int = -1
    most_drafts: int = FIRST_DRAFTS
    is_in_runner: bool = False
    new_blocks: list[NewBlock] = field(default_factory=list)

    def confirm(self, token_ids: Items[int]) -> None:
        """Take drafts that have become tokens of the sequence as computed; the last token never is."""
        if new := token_ids[self.draft_position :] if self.drafts else ():
            pairs = list(zip(self.drafts, new, strict=False))
            num_confirmed = next((place for place, (draft, token) in enumerate(pairs) if draft != token), len(pairs))
            all_confirmed = num_confirmed == len(pairs)
            self.most_drafts = self.most_drafts + MORE_DRAFTS if all_confirmed else num_confirmed + 1
            self.drafts, self.draft_position = (), -1
        while self.written and self.num_computed < len(token_ids) - 1:
            if self.written.pop(0) != token_ids[self.num_computed]:
                break
            self.num_computed += 1
        self.written.clear()


class DraftModelCache:
    """Slots and blocks of the sequences that a draft model has computed.

    Attributes:
        states: by sequence, the one that was drafted longest ago first.
    """

    def __init__(self, info: RunnerInfo, max_sequences: int, *, enable_prefix_caching: bool) -> None:
        self._manager = KVCacheManager(CacheConfig(
            num_blocks=info.num_blocks, block_size=info.block_size, windows=info.windows,
            enable_prefix_caching=enable_prefix_caching,
            max_cached_blocks=min(info.num_blocks, CACHED_BYTES // info.block_bytes) if info.block_bytes else None,
        ))  # fmt: skip
        self._shares = enable_prefix_caching
        self._num_slots = max_sequences
        self._free_slots = list(reversed(range(max_sequences)))
        self._released: list[int] = []
        self.states: dict[Sequence, DraftedSequence] = {}

    def start(self, sequence: Sequence, kept: Collection[Sequence]) -> DraftedSequence | None:
        """Return the state of a sequence, brought up to its tokens; None if only `kept` ones could make room."""
        state = self.states.pop(sequence, None)
        if state is None:
            if not self._free_slots and not self._evict(kept):
                return None
            hit = self._manager.match(self._hashes(sequence), len(sequence.token_ids))
            table = self._manager.allocate_table(hit, hit.num_tokens, ())
            state = DraftedSequence(self._free_slots.pop(), table, hit.num_tokens)
        self.states[sequence] = state
        state.confirm(sequence.token_ids)
        return state

    def reserve(self, state: DraftedSequence, num_tokens: int, kept: Collection[Sequence]) -> bool:
        """Reserve blocks for num_tokens; returns False if only sequences in `kept` could make room."""
        while True:
            try:
                state.new_blocks += self._manager.reserve(state.table, num_tokens)
            except OutOfBlocks:
                if not self._evict(kept):
                    return False
            else:
                return True

    def publish(self, sequence: Sequence, state: DraftedSequence) -> None:
        """Let other sequences share the full blocks of computed tokens; free those behind the windows."""
        self._manager.publish(state.table, self._hashes(sequence), state.num_computed)

    def take_changes(self, states: Items[DraftedSequence]) -> tuple[tuple[int, ...], list[tuple[int, int, int, int]]]:
        """Return what a step of these sequences has to tell the runner: released slots, and new blocks.

        The blocks are rows (slot, group, index, block). The sequences are in the runner from then on.
        """
        rows: list[tuple[int, int, int, int]] = []
        for state in states:
            rows += [(state.slot, *new) for new in (state.new_blocks if state.is_in_runner else state.table.held())]
            state.is_in_runner = True
            state.new_blocks = []
        released, self._released = tuple(self._released), []
        return released, rows

    def release(self, sequence: Sequence) -> None:
        """Release slot and blocks of a sequence, if it has any."""
        if (state := self.states.pop(sequence, None)) is not None:
            self._manager.release(state.table, ())
            self._free_slots.append(state.slot)
            self._released.append(state.slot)

    def clear(self) -> None:
        """Release everything."""
        for sequence in list(self.states):
            self.release(sequence)
        self._manager.evict_all()

    def check_integrity(self) -> list[str]:
        """Check slots and blocks; return the errors."""
        slots = sorted([*self._free_slots, *(state.slot for state in self.states.values())])
        errors = [] if slots == list(range(self._num_slots)) else [f"slots of the draft model are {slots}"]
        return errors + self._manager.check_integrity()

    def _evict(self, kept: Collection[Sequence]) -> bool:
        """Release the sequence that was drafted longest ago and is not in `kept`; returns False if there is none."""
        oldest = next((sequence for sequence in self.states if sequence not in kept), None)
        if oldest is not None:
            self.release(oldest)
        return oldest is not None

    def _hashes(self, sequence: Sequence) -> Items[BlockHash]:
        return sequence.block_hashes if self._shares else ()
