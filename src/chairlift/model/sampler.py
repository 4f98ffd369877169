"""Logits to tokens: every parameter per request, one request's fault confined to its own row.

raw logits ──► shaped (penalties, bias, bans) ──► greedy: argmax, of equals the lowest id
    │                                        └──► else: truncated distribution, one draw (choice.py, draws.py)
    └──► logprobs
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.core.errors import ChairliftError, NonFiniteLogits, SamplingFailed
from chairlift.core.request import TokenLogprob
from chairlift.engine.plan import Int32, NewSequence
from chairlift.model.choice import choose, chunks, likeliest
from chairlift.model.draws import uniforms
from chairlift.model.sampling_state import SamplingState, Shaper, raised, shape

Int64 = NDArray[np.int64]


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

    def __init__(self, max_slots: int, vocab_size: int) -> None:
        self._state = SamplingState(max_slots, vocab_size)

    def admit(self, new: NewSequence) -> None:
        """Take over a sequence; replaces whatever its slot held."""
        self._state.admit(new)

    def release(self, slot: int) -> None:
        """Forget a slot, known or not."""
        self._state.release(slot)

    def sample(self, logits: Tensor, slots: Int64) -> Drawn:
        """Draw one token a row.

        A slot that stands here n times draws choices 0 to n - 1 at one position; it goes on with choice 0.

        Args:
            logits: [R, V] of any floating dtype; not changed.
            slots: int64 [R], whose row it is.

        Returns:
            tokens, logprobs where asked for, and the faults of single rows; whatever is raised for one row stays there.
        """
        choices = _occurrence(slots)
        try:
            drawn = self._draw(logits, slots, choices)
        except Exception:
            drawn = self._draw_one_by_one(logits, slots, choices)
        goes_on = choices == 0
        goes_on[list(drawn.faults)] = False
        drawn.faults.update(self._state.observe(slots, drawn.tokens, np.flatnonzero(goes_on)))
        return drawn

    def _draw_one_by_one(self, logits: Tensor, slots: Int64, choices: Int64) -> Drawn:
        tokens = np.zeros(len(slots), np.int32)
        logprobs: list[TokenLogprob | None] = [None] * len(slots)
        faults: dict[int, ChairliftError] = {}
        for row in range(len(slots)):
            try:
                drawn = self._draw(logits[row : row + 1], slots[row : row + 1], choices[row : row + 1])
            except Exception as error:
                faults[row] = raised(error)
                continue
            tokens[row] = drawn.tokens[0]
            if drawn.logprobs:
                logprobs[row] = drawn.logprobs[0]
            if drawn.faults:
                faults[row] = drawn.faults[0]
        return Drawn(tokens, tuple(logprobs) if any(logprobs) else (), faults)

    def _draw(self, logits: Tensor, slots: Int64, choices: Int64) -> Drawn:
        """Draw all rows together; changes nothing."""
        state = self._state
        peaks, best = logits.max(-1)
        tokens = best.cpu().numpy().astype(np.int32)
        faults: dict[int, ChairliftError] = {row: _non_finite(float(peaks[row])) for row in _bad_rows(peaks)}
        if state.refused:
            faults |= {row: state.refused[slot] for row, slot in enumerate(slots.tolist()) if slot in state.refused}
        random = ~state.greedy[slots]
        wants_logprobs = state.logprobs[slots] >= 0
        rows = np.array([row for row in range(len(slots)) if row not in faults], np.int64) if faults else _all(slots)
        moved = np.array([slot in state.shapers for slot in slots[rows].tolist()], bool)
        if not (random.any() or wants_logprobs.any() or moved.any()):
            return Drawn(tokens, (), faults)
        work = logits if logits.dtype == torch.float64 else logits.float()
        numbers = uniforms(state.seed[slots], choices, state.num_outputs[slots])
        still = rows[~moved]
        still = still[random[still]]
        if len(still):
            tokens[still] = choose(_rows_of(work, still), state.rules(slots[still]), numbers[still])
        for some in chunks(rows[moved], work.shape[1]):
            shaped = work[torch.from_numpy(some).to(work.device)]
            self._draw_shaped(shaped, some, slots, numbers, tokens, faults)
        return Drawn(tokens, self._logprobs(work, tokens, slots, faults), faults)

    def _draw_shaped(
        self, work: Tensor, rows: Int64, slots: Int64, numbers: NDArray[np.float64],
        tokens: Int32, faults: dict[int, ChairliftError],
    ) -> None:  # fmt: skip
        """Draw rows whose logits (a copy, [n, V]) are moved first; writes tokens and faults."""
        state = self._state
        shapers = [state.shapers[slot] for slot in slots[rows].tolist()]
        num_outputs = state.num_outputs[slots[rows]]
        shape(work, shapers, num_outputs)
        peaks, best = work.max(-1)
        tokens[rows] = best.cpu().numpy()
        bad = _bad_rows(peaks)
        for index in bad:
            faults[int(rows[index])] = _nothing_left(float(peaks[index]), shapers[index], int(num_outputs[index]))
        random = ~state.greedy[slots[rows]]
        random[bad] = False
        some = np.flatnonzero(random)
        if len(some):
            at = rows[some]
            tokens[at] = choose(_rows_of(work, some), state.rules(slots[at]), numbers[at])

    def _logprobs(
        self, raw: Tensor, tokens: Int32, slots: Int64, faults: dict[int, ChairliftError]
    ) -> tuple[TokenLogprob | None, ...]:
        wanted = self._state.logprobs[slots]
        rows = np.array([row for row in np.flatnonzero(wanted >= 0).tolist() if row not in faults], np.int64)
        if not len(rows):
            return ()
        entries: list[TokenLogprob | None] = [None] * len(slots)
        for some in chunks(rows, raw.shape[1]):
            found = token_logprobs(_rows_of(raw, some), tokens[some].astype(np.int64), wanted[some])
            for row, entry in zip(some.tolist(), found, strict=True):
                entries[row] = entry
        return tuple(entries)


def token_logprobs(raw: Tensor, tokens: Int64, counts: Int64) -> list[TokenLogprob]:
    """Log-probabilities of chosen tokens and of the likeliest, of raw logits, summed in float64 by ascending id.

    Args:
        raw: [N, V] float32 or float64, the largest of each row finite.
        tokens: int64 [N], chosen.
        counts: int64 [N], how many of the likeliest; of equals the lower id comes first.
    """
    peak = raw.amax(-1, keepdim=True).double()
    norm = peak + (raw.double() - peak).exp_().cumsum(-1)[:, -1:].log()
    chosen = raw.gather(1, torch.from_numpy(tokens).to(raw.device)[:, None]).double() - norm
    values, ids = likeliest(raw, int(counts.max()))
    top_values, top_ids = (values.double() - norm).tolist(), ids.tolist()
    return [
        TokenLogprob(token, logprob, tuple(zip(top_ids[row][:count], top_values[row][:count], strict=True)))
        for row, (token, logprob, count) in enumerate(
            zip(tokens.tolist(), chosen[:, 0].tolist(), counts.tolist(), strict=True)
        )
    ]


def _all(slots: Int64) -> Int64:
    return np.arange(len(slots))


def _rows_of(work: Tensor, rows: Int64) -> Tensor:
    return work if len(rows) == work.shape[0] else work[torch.from_numpy(rows).to(work.device)]


def _bad_rows(peaks: Tensor) -> list[int]:
    """Rows whose largest logit is NaN (it wins every comparison), +inf, or -inf (then all of them are)."""
    found: list[int] = (~peaks.isfinite()).nonzero().flatten().tolist()
    return found


def _occurrence(slots: Int64) -> Int64:
    """How many times each entry stood there before."""
    order = np.argsort(slots, kind="stable")
    ranked = slots[order]
    first = np.searchsorted(ranked, ranked, side="left")
    occurrence = np.empty(len(slots), np.int64)
    occurrence[order] = np.arange(len(slots)) - first
    return occurrence


def _non_finite(peak: float) -> NonFiniteLogits:
    what = "NaN" if np.isnan(peak) else "infinite" if peak > 0 else "all -inf"
    return NonFiniteLogits(f"the model's logits for this request are {what}")


def _nothing_left(peak: float, shaper: Shaper, num_outputs: int) -> SamplingFailed:
    if peak != -np.inf:
        return SamplingFailed("penalties or logit_bias push this request's logits out of the range of numbers")
    ends = len(shaper.ends) if num_outputs < shaper.min_tokens else 0
    said = f"every token is banned: {len(shaper.banned)} by logit_bias, {ends} by min_tokens {shaper.min_tokens}"
    return SamplingFailed(said, logit_bias=len(shaper.banned), min_tokens=ends)
