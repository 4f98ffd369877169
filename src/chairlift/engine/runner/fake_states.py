"""FakeStates: the states of a fake model's layers, by slot and by checkpoint, with a check of every row's start.

A state is (number of tokens, hash of their positions and ids). It is what a recurrence over exactly these tokens gives,
so a state of other tokens, or of another sequence, is never equal to the one that a row needs.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import pack

from chairlift.engine.step_plan import NewSequence, StepPlan

State = tuple[int, int]
"""(number of tokens, hash)"""

ZERO_STATE: State = (0, 0)


def zero_state(adapter_digest: str) -> State:
    """Return the state before the first token, which depends on the adapter; ZERO_STATE without one."""
    return 0, zlib.crc32(adapter_digest.encode())


def advance_state(state: State, token_ids: Iterable[int]) -> State:
    """Return the state after more tokens."""
    position, value = state
    for token in token_ids:
        value = zlib.crc32(pack("<qq", position, token), value)
        position += 1
    return position, value


class FakeStates:
    """The states of one fake runner. Asserts the contract of StepPlan."""

    def __init__(self, num_checkpoints: int, zero_of: Callable[[int], State] = lambda number: ZERO_STATE) -> None:
        """Start without states; `zero_of` returns the state before the first token by the number of the adapter."""
        self._num_checkpoints = num_checkpoints
        self._zero_of = zero_of
        self._zeros: dict[int, State] = {}
        self._tokens: dict[int, list[int]] = {}  # the known tokens of the sequence in each slot
        self._states: dict[int, State | None] = {}  # None: any state, which no row may continue
        self._checkpoints: dict[int, State] = {}  # without those that were never saved, or by a step that failed

    def apply(self, plan: StepPlan) -> None:
        """Apply what a plan does before its forward pass: releases, new sequences and loads."""
        for slot in plan.released_slots:
            self._tokens.pop(slot, None)
            self._states.pop(slot, None)
            self._zeros.pop(slot, None)
        for sequence in plan.new_sequences:
            self._add(sequence)
        loads, saved = plan.state_loads.tolist(), plan.state_saves[:, 2].tolist()
        assert len({slot for _, slot in loads}) == len(loads), f"a slot is loaded twice: {loads}"
        assert len(set(saved)) == len(saved), f"a checkpoint is saved twice: {saved}"
        assert not {checkpoint for checkpoint, _ in loads} & set(saved), "a step loads and saves the same checkpoint"
        for checkpoint, slot in loads:
            assert slot in plan.slots, f"a state is loaded into slot {slot}, which is not in the step"
            assert checkpoint in self._checkpoints, f"checkpoint {checkpoint} was never saved"
            self._states[slot] = self._checkpoints[checkpoint]
        for checkpoint in saved:
            assert 0 <= checkpoint < self._num_checkpoints, f"checkpoint {checkpoint} does not exist"
            self._checkpoints.pop(checkpoint, None)

    def _add(self, sequence: NewSequence) -> None:
        self._tokens[sequence.slot] = list(sequence.token_ids)
        self._states[sequence.slot] = None
        self._zeros[sequence.slot] = self._zero_of(sequence.adapter)

    def advance(self, slot: int, start: int, token_ids: Sequence[int], saves: Mapping[int, int]) -> list[State]:
        """Run the recurrence over a row's tokens and save its states; returns the state after each token.

        `saves` has the checkpoint by the number of new tokens after which the state is saved.
        """
        known, end = self._tokens[slot], start + len(token_ids)
        zero = self._zeros[slot]
        state = zero if not start else self._states[slot]
        expected = advance_state(zero, known[:start])
        assert state == expected, f"slot {slot} has the state {state} at position {start}, not {expected}"
        assert known[start:end] == list(token_ids[: len(known) - start]), f"slot {slot} gets tokens of another sequence"
        known[start:end] = token_ids
        assert set(saves) <= set(range(1, len(token_ids) + 1)), f"states of a row after {sorted(saves)} tokens"
        states = []
        for count, token in enumerate(token_ids, start=1):
            state = advance_state(state, (token,))
            states.append(state)
            if count in saves:
                self._checkpoints[saves[count]] = state
        self._states[slot] = state
        return states

    def reject(self, slot: int, num_known: int) -> None:
        """Forget the drafts behind the first num_known tokens of a slot, whose state no row may continue."""
        known = self._tokens[slot]
        if len(known) > num_known:
            del known[num_known:]
            self._states[slot] = None

    def lose(self, plan: StepPlan) -> None:
        """Leave any state where a plan that failed has, or would have, written one."""
        self._states.update(dict.fromkeys(plan.slots.tolist()))
        for _, _, checkpoint in plan.state_saves.tolist():
            self._checkpoints.pop(checkpoint, None)
