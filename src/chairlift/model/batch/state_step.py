"""StateStep: which states the rows of a step use, and which of them are saved on the way.

entries of a StateCache:   | slot 0 | slot 1 | ... | slot N - 1 | checkpoint 0 | checkpoint 1 | ...
                             one for each running sequence        saved states of prefixes
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.model.device.pinned_copy import copy_from_pinned

Int32 = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class StateStep:
    """The rows of one step as layers with a state need them; shared by all of these layers.

    Attributes:
        slots: int64 [S], the entry of each row's states, each at most once.
        is_fresh: bool [S], whether a row starts at position 0: its states are zeros, whatever its entry holds.
        starts: int32 [S], position of each row's first new token.
        counts: new tokens of each row; padding tokens may follow the rows.
        loads: int32 [L, 2], entries (checkpoint, slot) that are copied before the layers run.
        saves: int32 [C, 3], (row, number n, entry): the states after n new tokens of the row are copied to the entry.
            They are in the order of rows and numbers.
        token_bounds: int32 [S + 1], row s has tokens token_bounds[s]:token_bounds[s + 1].
        save_bounds: int32 [S + 1], row s has the saves save_bounds[s]:save_bounds[s + 1].
        row_saves: int32 [C, 2], number and entry of `saves`, on the device.
        save_positions: int32 [C], tokens of the sequence at each save, on the host.
    """

    slots: Tensor
    is_fresh: Tensor
    starts: Tensor
    counts: tuple[int, ...]
    loads: Int32
    saves: Int32
    token_bounds: Tensor
    save_bounds: Tensor
    row_saves: Tensor
    save_positions: Int32

    @classmethod
    def of(
        cls, slots: Int32, num_new_tokens: Int32, start_positions: Int32, loads: Int32, saves: Int32, *,
        num_slots: int, device: torch.device,
    ) -> "StateStep":  # fmt: skip
        """Return the step of a plan's rows.

        Args:
            slots: int32 [S], slot of each row.
            num_new_tokens: int32 [S].
            start_positions: int32 [S].
            loads: int32 [L, 2], (checkpoint, slot).
            saves: int32 [C, 3], (row, number of the row's new tokens after which the state is saved, checkpoint).
            num_slots: entries before the first checkpoint.
            device: of the tensors.
        """
        check_saves(num_new_tokens, saves)
        assert len(np.unique(slots)) == len(slots), "two rows of a step have the same slot"
        ordered = entry_saves(saves[np.lexsort((saves[:, 1], saves[:, 0]))], num_slots)
        rows = np.arange(len(slots) + 1)
        return cls(
            slots=copy_from_pinned(slots.astype(np.int64), device),
            is_fresh=copy_from_pinned(start_positions == 0, device),
            starts=_to_device(start_positions, device),
            counts=tuple(num_new_tokens.tolist()),
            loads=entry_loads(loads, num_slots),
            saves=ordered,
            token_bounds=_to_device(np.concatenate(([0], num_new_tokens.cumsum())), device),
            save_bounds=_to_device(np.searchsorted(ordered[:, 0], rows), device),
            row_saves=_to_device(ordered[:, 1:], device),
            save_positions=start_positions[ordered[:, 0]] + ordered[:, 1],
        )


def entry_loads(loads: Int32, num_slots: int) -> Int32:
    """Return loads (checkpoint, slot), int32 [L, 2], as entries."""
    return loads + np.array([num_slots, 0], np.int32)


def entry_saves(saves: Int32, num_slots: int) -> Int32:
    """Return saves (row, number, checkpoint), int32 [C, 3], with entries in the place of checkpoints."""
    return saves + np.array([0, 0, num_slots], np.int32)


def _to_device(values: NDArray[np.integer[Any]], device: torch.device) -> Tensor:
    return copy_from_pinned(np.ascontiguousarray(values, np.int32), device)


def check_saves(num_new_tokens: Int32, saves: Int32) -> None:
    """Assert that each save names a row, and a number of tokens that the row has."""
    rows, counts = saves[:, 0], saves[:, 1]
    assert ((rows >= 0) & (rows < len(num_new_tokens))).all(), "a state of a row that does not exist is saved"
    assert ((counts >= 1) & (counts <= num_new_tokens[rows])).all(), "a state is saved at a token that the row lacks"
