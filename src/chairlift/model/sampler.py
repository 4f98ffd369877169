"""Logits to tokens: every parameter per request, one request's fault confined to its own row.

raw logits ──► shaped (penalties, bias, bans, processors, masks) ──► greedy: argmax, of equals the lowest id
    │                                                           └──► else: truncated distribution, one draw
    └──► logprobs                                                          (choice.py, draws.py)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.core.errors import ChairliftError, NonFiniteLogits, NothingLeft
from chairlift.core.request import TokenLogprob
from chairlift.engine.plan import Int32, Masks, NewSequence
from chairlift.model.choice import chunks, leading
from chairlift.model.drawing import Drawing, TorchDrawing
from chairlift.model.draws import uniforms
from chairlift.model.logprobs import token_logprobs
from chairlift.model.processors import Factories
from chairlift.model.sampling_state import SamplingState
from chairlift.model.shaping import Shaper, apply_masks, process, raised, shape

Int64 = NDArray[np.int64]
Allowed = Mapping[int, Int32]
"""By row the packed bits of the tokens that its structure allows."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was drawn for R rows.

    Attributes:
        tokens: int32 [R]; meaningless (but an id of the vocabulary) where a row failed.
        logprobs: one entry a row, or empty when no row asked.
        faults: by row, why it failed.
    """

    tokens: Int32
    logprobs: tuple[TokenLogprob | None, ...] = ()
    faults: dict[int, ChairliftError] = field(default_factory=dict)


class Sampler:
    """Draws tokens for slots and remembers what it drew.

    A row's token depends on its logits, its parameters, its seed and its own history; never on the rows beside it.
    """

    def __init__(
        self, max_slots: int, vocab_size: int, factories: Factories | None = None, drawing: Drawing | None = None
    ) -> None:  # fmt: skip
        """Make room for so many slots; `factories` are those of the logits processors, by name."""
        self._drawing = drawing or TorchDrawing()
        self._state = SamplingState(max_slots, vocab_size, factories or {})

    def admit(self, new: NewSequence) -> None:
        """Take over a sequence; replaces whatever its slot held."""
        self._state.admit(new)

    def release(self, slot: int) -> None:
        """Forget a slot, known or not."""
        self._state.release(slot)

    def wants_only_leading(self, slots: Int64) -> bool:
        """Whether the largest logit of each of these slots' rows is all that is needed of it."""
        state = self._state
        plain = state.greedy[slots].all() and not (state.logprobs[slots] >= 0).any()
        return bool(plain) and not any(slot in state.shapers for slot in slots.tolist())

    def take_leading(self, peaks: Tensor, best: Int64, slots: Int64) -> Drawn:
        """Draw rows of which only the largest logit [R] and its id [R] are known, as `sample` would."""
        return self._observed(slots, self._leading(peaks, best, slots))

    def sample(self, logits: Tensor, slots: Int64, masks: Masks | None = None) -> Drawn:
        """Draw one token a row.

        Args:
            logits: [R, V] of any floating dtype; not changed.
            slots: int64 [R], whose row it is; each once.
            masks: what the structure of some rows allows.

        Returns:
            tokens, logprobs where asked for, and the faults of single rows; whatever is raised for one row stays there.
        """
        allowed = {} if masks is None else masks.by_row()
        try:
            drawn = self._draw(logits, slots, allowed)
        except Exception:
            drawn = self._draw_one_by_one(logits, slots, allowed)
        return self._observed(slots, drawn)

    def _observed(self, slots: Int64, drawn: Drawn) -> Drawn:
        goes_on = np.ones(len(slots), bool)
        goes_on[list(drawn.faults)] = False
        drawn.faults.update(self._state.observe(slots, drawn.tokens, np.flatnonzero(goes_on)))
        return drawn

    def _leading(self, peaks: Tensor, best: Int64, slots: Int64) -> Drawn:
        """Take the likeliest of each row; a fault where it is no number or the slot is refused."""
        refused = self._state.refused
        faults: dict[int, ChairliftError] = {row: _non_finite(float(peaks[row])) for row in _bad_rows(peaks)}
        if refused:
            faults |= {row: refused[slot] for row, slot in enumerate(slots.tolist()) if slot in refused}
        return Drawn(best.astype(np.int32), (), faults)

    def _draw_one_by_one(self, logits: Tensor, slots: Int64, allowed: Allowed) -> Drawn:
        tokens = np.zeros(len(slots), np.int32)
        logprobs: list[TokenLogprob | None] = [None] * len(slots)
        faults: dict[int, ChairliftError] = {}
        for row in range(len(slots)):
            here = {0: allowed[row]} if row in allowed else {}
            try:
                drawn = self._draw(logits[row : row + 1], slots[row : row + 1], here)
            except Exception as error:
                faults[row] = raised(error)
                continue
            tokens[row] = drawn.tokens[0]
            if drawn.logprobs:
                logprobs[row] = drawn.logprobs[0]
            if drawn.faults:
                faults[row] = drawn.faults[0]
        return Drawn(tokens, tuple(logprobs) if any(logprobs) else (), faults)

    def _draw(self, logits: Tensor, slots: Int64, allowed: Allowed) -> Drawn:
        """Draw all rows together; changes nothing."""
        state = self._state
        drawn = self._leading(*leading(logits), slots)
        tokens, faults = drawn.tokens, drawn.faults
        random = ~state.greedy[slots]
        wants_logprobs = state.logprobs[slots] >= 0
        rows = np.array([row for row in range(len(slots)) if row not in faults], np.int64) if faults else _all(slots)
        moved = np.array([slots[row] in state.shapers or row in allowed for row in rows.tolist()], bool)
        if not (random.any() or wants_logprobs.any() or moved.any()):
            return drawn
        work = logits if logits.dtype == torch.float64 else logits.float()
        numbers = uniforms(state.seed[slots], state.choice[slots], state.num_outputs[slots])
        still = rows[~moved]
        still = still[random[still]]
        if len(still):
            tokens[still] = self._drawing.choose(_rows_of(work, still), state.rules(slots[still]), numbers[still])
        for some in chunks(rows[moved], work.shape[1]):
            shaped = work[torch.from_numpy(some).to(work.device)]
            self._draw_shaped(shaped, some, slots, allowed, numbers, tokens, faults)
        return Drawn(tokens, self._logprobs(work, tokens, slots, faults), faults)

    def _draw_shaped(
        self, work: Tensor, rows: Int64, slots: Int64, allowed: Allowed, numbers: NDArray[np.float64],
        tokens: Int32, faults: dict[int, ChairliftError],
    ) -> None:  # fmt: skip
        """Draw rows whose logits (a copy, [n, V]) are moved first; writes tokens and faults."""
        state = self._state
        shapers = [state.shapers.get(slot) for slot in slots[rows].tolist()]
        num_outputs = state.num_outputs[slots[rows]]
        shape(work, shapers, num_outputs)
        failed = process(work, shapers)
        apply_masks(work, [allowed.get(row) for row in rows.tolist()])
        peaks, tokens[rows] = leading(work)
        for index in _bad_rows(peaks):
            if index not in failed:
                masked = int(rows[index]) in allowed
                failed[index] = _nothing_left(float(peaks[index]), shapers[index], int(num_outputs[index]), masked)
        faults.update({int(rows[index]): error for index, error in failed.items()})
        random = ~state.greedy[slots[rows]]
        random[list(failed)] = False
        some = np.flatnonzero(random)
        if len(some):
            at = rows[some]
            tokens[at] = self._drawing.choose(_rows_of(work, some), state.rules(slots[at]), numbers[at])

    def _logprobs(
        self, raw: Tensor, tokens: Int32, slots: Int64, faults: dict[int, ChairliftError]
    ) -> tuple[TokenLogprob | None, ...]:
        wanted = self._state.logprobs[slots]
        rows = np.array([row for row in np.flatnonzero(wanted >= 0).tolist() if row not in faults], np.int64)
        if not len(rows):
            return ()
        entries: list[TokenLogprob | None] = [None] * len(slots)
        for some in chunks(rows, raw.shape[1]):
            found = token_logprobs(_rows_of(raw, some), tokens[some].astype(np.int64), wanted[some], self._drawing)
            for row, entry in zip(some.tolist(), found, strict=True):
                entries[row] = entry
        return tuple(entries)


def _all(slots: Int64) -> Int64:
    return np.arange(len(slots))


def _rows_of(work: Tensor, rows: Int64) -> Tensor:
    return work if len(rows) == work.shape[0] else work[torch.from_numpy(rows).to(work.device)]


def _bad_rows(peaks: Tensor) -> list[int]:
    """Rows whose largest logit is NaN (it wins every comparison), +inf, or -inf (then all of them are)."""
    found: list[int] = (~peaks.isfinite()).nonzero().flatten().tolist()
    return found


def _non_finite(peak: float) -> NonFiniteLogits:
    what = "NaN" if np.isnan(peak) else "infinite" if peak > 0 else "all -inf"
    return NonFiniteLogits(f"the model's logits for this request are {what}")


def _nothing_left(peak: float, shaper: Shaper | None, num_outputs: int, masked: bool) -> NothingLeft:
    if peak != -np.inf:
        return NothingLeft("penalties or logit_bias push this request's logits out of the range of numbers")
    if masked:
        return NothingLeft("no token is left that the structure allows and the other parameters do not ban")
    assert shaper is not None, "a row that nothing moved has lost its tokens"
    return shaper.why_nothing_is_left(num_outputs)
