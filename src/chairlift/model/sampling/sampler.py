"""Sampler: samples tokens from logits with parameters per request, and confines an error to the row of its request.

raw logits ──► processed (penalties, bias, bans, processors, masks) ──► greedy: argmax, lowest id among equal logits
    │                                                              └──► else: one sample of the truncated distribution
    └──► logprobs                                                             (truncated_sampling.py, philox.py)

A sequence with drafts has a row for its next token and one after each draft. They are sampled one after the other, as
in steps of one token: a row counts if the samples before it are the drafts, and only then is it sampled at all.
So processors are called once a position, in order: a row that fails is not sampled again in the sequence's next step.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.core.engine_output import TokenLogprob
from chairlift.core.errors import ChairliftError, NoAllowedToken, NonFiniteLogits
from chairlift.engine.step_plan import Int32, NewSequence, TokenMasks
from chairlift.model.device.device_errors import is_of_device
from chairlift.model.sampling.custom_processors import Factories
from chairlift.model.sampling.lm_head_output import LMHeadOutput, LogitsRequest
from chairlift.model.sampling.logits_processing import (
    RowLogitsProcessor,
    apply_masks,
    as_sampling_error,
    process_logits,
    run_custom_processors,
)
from chairlift.model.sampling.logprobs import token_logprobs
from chairlift.model.sampling.philox import uniforms
from chairlift.model.sampling.sampling_ops import SamplingOps, TorchSamplingOps
from chairlift.model.sampling.sampling_state import SamplingState
from chairlift.model.sampling.truncated_sampling import Floats, argmax, chunks

Int64 = NDArray[np.int64]
Allowed = Mapping[int, Int32]
"""By row the packed bits of the tokens that its grammar allows."""


@dataclass(frozen=True, slots=True)
class DraftTokens:
    """The drafts of S sequences, which have R rows of logits together.

    Attributes:
        bounds: int32 [S + 1]; rows bounds[i] to bounds[i + 1] - 1 are those of sequence i, in order of position.
        next_drafts: int32 [R], the draft behind each row; NO_DRAFT (below any id) behind the last one of a sequence.
    """

    bounds: Int32
    next_drafts: Int32


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """The sampled tokens of S sequences, N in all.

    Attributes:
        tokens: int32 [N]; meaningless (but an id of the vocabulary) where a sequence failed.
        cu_tokens: int32 [S + 1]; tokens[cu_tokens[i]:cu_tokens[i + 1]] are those of sequence i, at least one.
        logprobs: one entry per token, or empty if no sequence requests logprobs.
        row_errors: the error of each sequence whose first row failed.
    """

    tokens: Int32
    cu_tokens: Int32
    logprobs: tuple[TokenLogprob | None, ...] = ()
    row_errors: dict[int, ChairliftError] = field(default_factory=dict)

    @classmethod
    def of_rows(
        cls, tokens: Int32, logprobs: tuple[TokenLogprob | None, ...] = (),
        row_errors: dict[int, ChairliftError] | None = None,
    ) -> "SamplerOutput":  # fmt: skip
        """Return the output of sequences with one token each."""
        return cls(tokens, np.arange(len(tokens) + 1, dtype=np.int32), logprobs, row_errors or {})

    @property
    def last_tokens(self) -> Int32:
        """The last token of each sequence, int32 [S]."""
        return self.tokens[self.cu_tokens[1:] - 1]


class Sampler:
    """Samples tokens for slots and stores the history that later samples need.

    A row's token depends on its logits, its parameters, its seed and its own history; never on the other rows.
    """

    def __init__(
        self, max_slots: int, vocab_size: int, factories: Factories | None = None,
        sampling_ops: SamplingOps | None = None,
    ) -> None:  # fmt: skip
        """Create the state of `max_slots` slots; `factories` create custom logits processors, by name."""
        self._sampling_ops = sampling_ops or TorchSamplingOps()
        self._state = SamplingState(max_slots, vocab_size, factories or {})

    def add_sequence(self, new: NewSequence) -> None:
        """Add a sequence; replaces the previous one of its slot."""
        self._state.add_sequence(new)

    def remove_slot(self, slot: int) -> None:
        """Remove a slot; an unknown slot is ignored."""
        self._state.remove_slot(slot)

    def sample(
        self, head: Callable[[LogitsRequest], LMHeadOutput], slots: Int64, masks: TokenMasks | None = None,
        drafts: DraftTokens | None = None,
    ) -> SamplerOutput:  # fmt: skip
        """Sample one token per sequence, and one more behind each draft that was sampled.

        Args:
            head: returns the requested lm_head output of the R rows.
            slots: int64 [R], the slot of each row; those of a sequence with drafts are equal.
            masks: the tokens that the grammars of some rows allow.
            drafts: which rows are behind drafts; None where each slot has one row.

        Returns:
            tokens, logprobs where requested, and the errors of single sequences. An exception for one row becomes its
            row error, or ends the tokens of its sequence where it is behind a draft and is the error of its
            next row; an exception of the head is raised, and so is one of a device that has no memory or has failed.
        """
        request, later_masks = self._logits_request(slots, masks)
        output = head(request)
        tokens, row_errors = output.argmax_ids.astype(np.int32), self._row_errors(output, slots)
        if request.masks is not None:
            self._apply_masked_argmax(output, request.masked_rows, slots, tokens, row_errors)
        logprobs: dict[int, TokenLogprob] = {}
        logits_index = request.needs_logits.cumsum() - 1
        batch = _SampleBatch(output.logits, logits_index, slots, later_masks, tokens, logprobs, row_errors)
        if drafts is None:
            self._sample_once(batch, request, np.arange(len(slots)))
            return SamplerOutput.of_rows(
                tokens, tuple(map(logprobs.get, range(len(slots)))) if logprobs else (), row_errors
            )
        return self._sample_behind_drafts(batch, request, drafts, _rows_without_tokens(len(slots), masks))

    def _sample_once(self, batch: "_SampleBatch", request: LogitsRequest, rows: Int64) -> None:
        """Sample rows of different slots, and add their tokens to the histories."""
        row_errors = batch.row_errors
        if len(batch.logits):
            needing = rows[request.needs_logits[rows]]
            if row_errors:
                needing = np.array([row for row in needing.tolist() if row not in row_errors], np.int64)
            if len(needing):
                self._sample_rows(batch, needing)
        # Last, when the errors of all rows are known: a failed row has no output.
        failed = [place for place, row in enumerate(rows.tolist()) if row in row_errors] if row_errors else []
        errors = self._state.observe(batch.slots[rows], batch.tokens[rows], failed)
        row_errors.update({int(rows[place]): error for place, error in errors.items()})

    def _sample_behind_drafts(
        self, batch: "_SampleBatch", request: LogitsRequest, drafts: DraftTokens, is_masked_out: NDArray[np.bool_]
    ) -> SamplerOutput:
        """Sample the first row of each sequence, then the next rows of those whose samples are their drafts.

        A row behind a draft that fails leaves its error to the sequence's next step. One whose mask allows no token
        (bool [R]) is left to that step, since its mask may have failed.
        """
        tokens, errors, next_drafts = batch.tokens, batch.row_errors, drafts.next_drafts
        counts = np.ones(len(drafts.bounds) - 1, np.int64)
        sequences = np.arange(len(counts))
        rows = drafts.bounds[:-1].astype(np.int64)
        while len(rows):
            self._sample_once(batch, request, rows)
            failed = np.array([row in errors for row in rows.tolist()], bool)
            counts[sequences[~failed]] = (rows - drafts.bounds[sequences] + 1)[~failed]
            for row in rows[failed & (rows > drafts.bounds[sequences])].tolist():
                self._state.slot_errors[int(batch.slots[row])] = errors[row]
            confirmed = ~failed & (tokens[rows] == next_drafts[rows])
            sequences, rows = sequences[confirmed], rows[confirmed] + 1
            sequences, rows = sequences[~is_masked_out[rows]], rows[~is_masked_out[rows]]
        first = drafts.bounds[:-1]
        kept = np.concatenate([np.arange(row, row + count) for row, count in zip(first.tolist(), counts, strict=True)])
        logprobs = tuple(batch.logprobs.get(row) for row in kept.tolist()) if batch.logprobs else ()
        row_errors = {place: errors[row] for place, row in enumerate(first.tolist()) if row in errors}
        cu_tokens = np.concatenate([[0], counts.cumsum()]).astype(np.int32)
        return SamplerOutput(tokens[kept], cu_tokens, logprobs, row_errors)

    def _logits_request(self, slots: Int64, masks: TokenMasks | None) -> tuple[LogitsRequest, Allowed]:
        """Return the request to the head, and the masks of rows that need raw logits and are masked later."""
        state = self._state
        # The usual greedy step: the lm_head returns the argmax of each row, and no logits are kept.
        if not state.slots_needing_logits:
            return LogitsRequest(np.zeros(len(slots), bool), masks), {}
        raw = state.logprobs[slots] >= 0
        if state.row_processors:
            raw |= np.array([slot in state.row_processors for slot in slots.tolist()], bool)
        needs_logits = raw | ~state.greedy[slots]
        if masks is None or not raw.any():
            return LogitsRequest(needs_logits, masks), {}
        # Logprobs are of raw logits, and logits processors run before masks: the head must not apply these.
        later_masks = raw[masks.sample_indices]
        head_masks = (
            masks
            if not later_masks.any()
            else TokenMasks(masks.sample_indices[~later_masks], masks.bitmask[~later_masks])
        )
        return LogitsRequest(needs_logits, head_masks), dict(
            zip(masks.sample_indices[later_masks].tolist(), masks.bitmask[later_masks], strict=True)
        )

    def _row_errors(self, output: LMHeadOutput, slots: Int64) -> dict[int, ChairliftError]:
        """Return the errors of rows whose largest logit is not finite, and of rows whose slot has an error."""
        max_logits = output.max_logits
        row_errors: dict[int, ChairliftError] = {
            row: non_finite_error(float(max_logits[row])) for row in _non_finite_rows(max_logits)
        }
        if slot_errors := self._state.slot_errors:
            row_errors |= {row: slot_errors[slot] for row, slot in enumerate(slots.tolist()) if slot in slot_errors}
        return row_errors

    def _apply_masked_argmax(
        self, output: LMHeadOutput, rows: Int64, slots: Int64, tokens: Int32, row_errors: dict[int, ChairliftError]
    ) -> None:  # fmt: skip
        """Set the tokens of rows whose masks the head applied to the most likely allowed tokens."""
        tokens[rows] = output.masked_argmax_ids
        for index in _non_finite_rows(output.masked_max_logits):
            row = int(rows[index])
            num_outputs = int(self._state.num_outputs[slots[row]])
            # A row whose raw logits are not finite has that error already, which says more.
            row_errors.setdefault(row, no_token_error(float(output.masked_max_logits[index]), None, num_outputs, True))

    def _sample_rows(self, batch: "_SampleBatch", rows: Int64) -> None:
        """Sample rows that have logits, together, or one by one if that raises. Raises the errors of a device."""
        try:
            self._sample_together(batch, rows)
            return
        except Exception:
            # What the failed attempt has written is written again, row by row; errors of it would remain.
            for row in rows.tolist():
                batch.row_errors.pop(row, None)
        for each in rows[:, None]:
            try:
                self._sample_together(batch, each)
            except Exception as error:
                # A device without memory, or one that has failed, is not the fault of this row.
                if is_of_device(error):
                    raise
                batch.row_errors[int(each[0])] = as_sampling_error(error)

    def _sample_together(self, batch: "_SampleBatch", rows: Int64) -> None:
        """Sample rows together; writes their tokens, logprobs and errors and nothing else."""
        state, slots = self._state, batch.slots
        is_processed = np.array(
            [slots[row] in state.row_processors or row in batch.allowed for row in rows.tolist()], bool
        )
        raw_rows = rows[~is_processed & ~state.greedy[slots[rows]]]
        if len(raw_rows):
            self._sample_truncated(batch, batch.logits_of(raw_rows), raw_rows)
        # In chunks, since each is a copy of its logits that processors change.
        for some in chunks(rows[is_processed], batch.logits.shape[1]):
            self._sample_processed(batch, batch.logits_of(some, copied=True), some)
        # Of the raw logits and the sampled tokens, so behind the sampling.
        logprob_rows = [row for row in rows[state.logprobs[slots[rows]] >= 0].tolist() if row not in batch.row_errors]
        for some in chunks(np.array(logprob_rows, np.int64), batch.logits.shape[1]):
            counts, tokens = state.logprobs[slots[some]], batch.tokens[some].astype(np.int64)
            entries = token_logprobs(batch.logits_of(some), tokens, counts, self._sampling_ops)
            batch.logprobs.update(zip(some.tolist(), entries, strict=True))

    def _sample_processed(self, batch: "_SampleBatch", logits: Tensor, rows: Int64) -> None:
        """Process the logits (a copy, [n, V]) of rows, then sample the rows."""
        state, slots = self._state, batch.slots[rows]
        row_processors = [state.row_processors.get(slot) for slot in slots.tolist()]
        num_outputs = state.num_outputs[slots]
        process_logits(logits, row_processors, num_outputs)
        failed = run_custom_processors(logits, row_processors)
        apply_masks(logits, [batch.allowed.get(row) for row in rows.tolist()])
        max_logits, batch.tokens[rows] = argmax(logits)
        for index in _non_finite_rows(max_logits):
            if index not in failed:
                masked = int(rows[index]) in batch.allowed
                failed[index] = no_token_error(
                    float(max_logits[index]), row_processors[index], int(num_outputs[index]), masked
                )
        batch.row_errors.update({int(rows[index]): error for index, error in failed.items()})
        random = ~state.greedy[slots]
        # A row that has failed may have no finite logit, which sample_tokens() demands.
        random[list(failed)] = False
        if random.any():
            some = np.flatnonzero(random)
            self._sample_truncated(
                batch, logits if random.all() else logits[torch.from_numpy(some).to(logits.device)], rows[some]
            )

    def _sample_truncated(self, batch: "_SampleBatch", logits: Tensor, rows: Int64) -> None:
        """Sample from logits [n, V] of rows, none of them greedy."""
        state, slots = self._state, batch.slots[rows]
        numbers = uniforms(state.seed[slots], state.choice[slots], state.num_outputs[slots])
        batch.tokens[rows] = self._sampling_ops.sample_tokens(logits, state.truncation(slots), numbers)


@dataclass(frozen=True, slots=True)
class _SampleBatch:
    """A step whose rows are being sampled: logits [N, V] of some of R rows, and by row their index among these."""

    logits: Tensor
    logits_index: Int64
    slots: Int64
    allowed: Allowed
    tokens: Int32
    logprobs: dict[int, TokenLogprob]
    row_errors: dict[int, ChairliftError]

    def logits_of(self, rows: Int64, *, copied: bool = False) -> Tensor:
        """Return logits [n, V] of some rows, in ascending order."""
        if len(rows) == len(self.logits) and not copied:
            return self.logits
        return self.logits[torch.from_numpy(self.logits_index[rows]).to(self.logits.device)]


def _rows_without_tokens(num_rows: int, masks: TokenMasks | None) -> NDArray[np.bool_]:
    """Return which rows have a mask that allows no token, bool [R]."""
    is_masked_out = np.zeros(num_rows, bool)
    if masks is not None:
        is_masked_out[masks.sample_indices] = ~masks.bitmask.any(axis=1)
    return is_masked_out


def _non_finite_rows(max_logits: Floats) -> list[int]:
    """Return rows whose largest logit is NaN (NaN wins every comparison), +inf, or -inf (all logits are -inf)."""
    return [row for row, max_logit in enumerate(max_logits.tolist()) if not isfinite(max_logit)]


def non_finite_error(max_logit: float) -> NonFiniteLogits:
    """Return the error of a row whose largest logit is not finite."""
    what = "NaN" if np.isnan(max_logit) else "infinite" if max_logit > 0 else "all -inf"
    return NonFiniteLogits(f"the model's logits for this request are {what}")


def no_token_error(
    max_logit: float, row_processor: RowLogitsProcessor | None, num_outputs: int, masked: bool
) -> NoAllowedToken:
    """Return the error of a row whose largest logit is not finite after processors and masks."""
    if max_logit != -np.inf:
        return NoAllowedToken("penalties or logit_bias push this request's logits out of the range of numbers")
    if masked:
        return NoAllowedToken("no token is left that the structured output allows and the other parameters do not ban")
    assert row_processor is not None, "a row without a logits processor has no token left"
    return row_processor.no_allowed_token_error(num_outputs)
