"""Logits to tokens: every parameter per request, one request's fault confined to its own row.

raw logits ──► shaped (penalties, bias, bans, processors, masks) ──► greedy: argmax, of equals the lowest id
    │                                                           └──► else: truncated distribution, one draw
    └──► logprobs                                                          (choice.py, draws.py)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.core.errors import ChairliftError, NoAllowedToken, NonFiniteLogits
from chairlift.core.request import TokenLogprob
from chairlift.engine.step_plan import Int32, NewSequence, TokenMasks
from chairlift.model.sampling.custom_processors import Factories
from chairlift.model.sampling.lm_head_output import Scored, Wanted
from chairlift.model.sampling.logits_processing import Shaper, apply_masks, process, raised, shape
from chairlift.model.sampling.logprobs import token_logprobs
from chairlift.model.sampling.philox import uniforms
from chairlift.model.sampling.sampling_ops import Drawing, TorchDrawing
from chairlift.model.sampling.sampling_state import SamplingState
from chairlift.model.sampling.truncated_sampling import Floats, chunks, leading

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

    def sample(self, head: Callable[[Wanted], Scored], slots: Int64, masks: TokenMasks | None = None) -> Drawn:
        """Draw one token a row.

        Args:
            head: says of the R rows what it is asked.
            slots: int64 [R], whose row it is; each once.
            masks: what the structure of some rows allows.

        Returns:
            tokens, logprobs where asked for, and the faults of single rows; whatever is raised for one row stays there,
            but not what the head raises.
        """
        wanted, later = self._wanted(slots, masks)
        found = head(wanted)
        tokens, faults = found.best.astype(np.int32), self._faults(found, slots)
        if wanted.masks is not None:
            self._take_allowed(found, wanted.masked, slots, tokens, faults)
        logprobs: dict[int, TokenLogprob] = {}
        if len(found.logits):
            rows = np.array([row for row in np.flatnonzero(wanted.kept).tolist() if row not in faults], np.int64)
            if len(rows):
                places = wanted.kept.cumsum() - 1
                self._draw_each(_Draws(found.logits, places, slots, later, tokens, logprobs, faults), rows)
        faults.update(self._state.observe(slots, tokens, list(faults)))
        return Drawn(tokens, tuple(map(logprobs.get, range(len(slots)))) if logprobs else (), faults)

    def _wanted(self, slots: Int64, masks: TokenMasks | None) -> tuple[Wanted, Allowed]:
        """Return what the head shall say, and the masks of rows that are wanted as they are and banned from later."""
        state = self._state
        if not state.special:
            return Wanted(np.zeros(len(slots), bool), masks), {}
        raw = state.logprobs[slots] >= 0
        if state.shapers:
            raw |= np.array([slot in state.shapers for slot in slots.tolist()], bool)
        kept = raw | ~state.greedy[slots]
        if masks is None or not raw.any():
            return Wanted(kept, masks), {}
        later = raw[masks.sample_indices]
        told = masks if not later.any() else TokenMasks(masks.sample_indices[~later], masks.bitmask[~later])
        return Wanted(kept, told), dict(zip(masks.sample_indices[later].tolist(), masks.bitmask[later], strict=True))

    def _faults(self, found: Scored, slots: Int64) -> dict[int, ChairliftError]:
        """Rows whose likeliest logit is no number, and those whose slot is refused."""
        peaks = found.peaks
        faults: dict[int, ChairliftError] = {row: _non_finite(float(peaks[row])) for row in _bad(peaks)}
        if refused := self._state.refused:
            faults |= {row: refused[slot] for row, slot in enumerate(slots.tolist()) if slot in refused}
        return faults

    def _take_allowed(
        self, found: Scored, rows: Int64, slots: Int64, tokens: Int32, faults: dict[int, ChairliftError]
    ) -> None:  # fmt: skip
        """Take the likeliest of what the masks allow that the head was given, of these rows."""
        tokens[rows] = found.allowed_best
        for index in _bad(found.allowed_peaks):
            row = int(rows[index])
            num_outputs = int(self._state.num_outputs[slots[row]])
            faults.setdefault(row, _nothing_left(float(found.allowed_peaks[index]), None, num_outputs, True))

    def _draw_each(self, draws: "_Draws", rows: Int64) -> None:
        """Draw rows whose logits are there; together, and where that raises each for itself."""
        try:
            self._draw(draws, rows)
            return
        except Exception:
            for row in rows.tolist():
                draws.faults.pop(row, None)
        for each in rows[:, None]:
            try:
                self._draw(draws, each)
            except Exception as error:
                draws.faults[int(each[0])] = raised(error)

    def _draw(self, draws: "_Draws", rows: Int64) -> None:
        """Draw rows together; writes their tokens, logprobs and faults and nothing else."""
        state, slots = self._state, draws.slots
        moved = np.array([slots[row] in state.shapers or row in draws.allowed for row in rows.tolist()], bool)
        still = rows[~moved & ~state.greedy[slots[rows]]]
        if len(still):
            self._choose(draws, draws.logits_of(still), still)
        for some in chunks(rows[moved], draws.logits.shape[1]):
            self._draw_shaped(draws, draws.logits_of(some, copied=True), some)
        wants = [row for row in rows[state.logprobs[slots[rows]] >= 0].tolist() if row not in draws.faults]
        for some in chunks(np.array(wants, np.int64), draws.logits.shape[1]):
            counts, tokens = state.logprobs[slots[some]], draws.tokens[some].astype(np.int64)
            found = token_logprobs(draws.logits_of(some), tokens, counts, self._drawing)
            draws.logprobs.update(zip(some.tolist(), found, strict=True))

    def _draw_shaped(self, draws: "_Draws", work: Tensor, rows: Int64) -> None:
        """Draw rows whose logits (a copy, [n, V]) are moved first."""
        state, slots = self._state, draws.slots[rows]
        shapers = [state.shapers.get(slot) for slot in slots.tolist()]
        num_outputs = state.num_outputs[slots]
        shape(work, shapers, num_outputs)
        failed = process(work, shapers)
        apply_masks(work, [draws.allowed.get(row) for row in rows.tolist()])
        peaks, draws.tokens[rows] = leading(work)
        for index in _bad(peaks):
            if index not in failed:
                masked = int(rows[index]) in draws.allowed
                failed[index] = _nothing_left(float(peaks[index]), shapers[index], int(num_outputs[index]), masked)
        draws.faults.update({int(rows[index]): error for index, error in failed.items()})
        random = ~state.greedy[slots]
        random[list(failed)] = False
        if random.any():
            some = np.flatnonzero(random)
            self._choose(draws, work if random.all() else work[torch.from_numpy(some).to(work.device)], rows[some])

    def _choose(self, draws: "_Draws", logits: Tensor, rows: Int64) -> None:
        """Draw from logits [n, V] of rows, none of them greedy."""
        state, slots = self._state, draws.slots[rows]
        numbers = uniforms(state.seed[slots], state.choice[slots], state.num_outputs[slots])
        draws.tokens[rows] = self._drawing.choose(logits, state.rules(slots), numbers)


@dataclass(frozen=True, slots=True)
class _Draws:
    """A step whose rows are being drawn: logits [N, V] of some of R rows, and by row their places among these."""

    logits: Tensor
    places: Int64
    slots: Int64
    allowed: Allowed
    tokens: Int32
    logprobs: dict[int, TokenLogprob]
    faults: dict[int, ChairliftError]

    def logits_of(self, rows: Int64, *, copied: bool = False) -> Tensor:
        """Return logits [n, V] of some rows, ascending."""
        if len(rows) == len(self.logits) and not copied:
            return self.logits
        return self.logits[torch.from_numpy(self.places[rows]).to(self.logits.device)]


def _bad(peaks: Floats) -> list[int]:
    """Those that are NaN (it wins every comparison), +inf, or -inf (then all logits of the row are)."""
    return [row for row, peak in enumerate(peaks.tolist()) if not isfinite(peak)]


def _non_finite(peak: float) -> NonFiniteLogits:
    what = "NaN" if np.isnan(peak) else "infinite" if peak > 0 else "all -inf"
    return NonFiniteLogits(f"the model's logits for this request are {what}")


def _nothing_left(peak: float, shaper: Shaper | None, num_outputs: int, masked: bool) -> NoAllowedToken:
    if peak != -np.inf:
        return NoAllowedToken("penalties or logit_bias push this request's logits out of the range of numbers")
    if masked:
        return NoAllowedToken("no token is left that the structure allows and the other parameters do not ban")
    assert shaper is not None, "a row that nothing moved has lost its tokens"
    return shaper.why_nothing_is_left(num_outputs)
