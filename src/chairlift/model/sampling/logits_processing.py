"""RowLogitsProcessor, process_logits: change logits before sampling, in a fixed order and without randomness.

in order    repetition penalty     over prompt and output; transformers' rule
            presence, frequency    over the output alone; OpenAI's rule
            logit_bias             added; a bias of -100 bans
            bans                   repeated n-grams, bad words, tokens outside allowed_token_ids, and end-of-sequence
                                   and stop tokens until min_tokens outputs exist
            logits processors      custom processors of the request (custom_processors.py)
            masks                  the tokens that the grammar allows (engine/structured/)
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding, pad

from chairlift.core.errors import ChairliftError, NoAllowedToken, SamplingFailed
from chairlift.core.sampling_params import SamplingParams
from chairlift.engine.step_plan import Int32, NewSequence
from chairlift.model.sampling.banned_tokens import BadWords, TokenHistory, repeated_ngram_tokens
from chairlift.model.sampling.custom_processors import Factories, build_processors

BAN = -100.0
"""A logit bias at or below this value bans its token."""

Int64 = NDArray[np.int64]


class TokenCounts:
    """The distinct tokens of one request, and the number of times each occurs in its output.

    Owns: two arrays of equal length and the index of each token in them.
    """

    def __init__(self, prompt: Sequence[int], outputs: Sequence[int]) -> None:
        self._ids = np.unique(np.asarray(prompt, np.int64))
        self._counts = np.zeros(len(self._ids), np.int64)
        self._size = len(self._ids)
        self._index_of = {token: index for index, token in enumerate(self._ids.tolist())}
        for token in outputs:
            self.add(token)

    @property
    def token_ids(self) -> Int64:
        """Distinct tokens, int64 [n]."""
        return self._ids[: self._size]

    @property
    def counts(self) -> Int64:
        """Occurrences of each token in the output, int64 [n]; 0 for a token of the prompt only."""
        return self._counts[: self._size]

    def add(self, token: int) -> None:
        """Count one more output token."""
        index = self._index_of.setdefault(token, self._size)
        if index == self._size:
            if self._size == len(self._ids):
                num_free = max(64, self._size)
                self._ids = np.concatenate([self._ids, np.zeros(num_free, np.int64)])
                self._counts = np.concatenate([self._counts, np.zeros(num_free, np.int64)])
            self._ids[index] = token
            self._size += 1
        self._counts[index] += 1


class RowLogitsProcessor:
    """Changes the logits of one request before sampling, without randomness.

    Attributes:
        history: token counts for penalties; None without penalties.
        tail: every token so far; None where no rule depends on their order.
        processors: the request's custom processors, in order.
    """

    def __init__(self, new: NewSequence, vocab_size: int, factories: Factories) -> None:
        """Read the parameters. Raises TokenOutOfRange if they name a token outside the vocabulary."""
        params = new.params
        params.check_vocabulary(vocab_size)
        self.repetition = 1.0 if params.repetition_penalty is None else params.repetition_penalty
        self.presence, self.frequency = params.presence_penalty, params.frequency_penalty
        self.history: TokenCounts | None = None
        if self.penalises:
            start = len(new.token_ids) - new.num_output_tokens
            # Only the repetition penalty counts the prompt's tokens.
            prompt = new.token_ids[:start] if self.repetition != 1.0 else ()
            self.history = TokenCounts(prompt, new.token_ids[start:])
        bias = {token: value for token, value in params.logit_bias.items() if value > BAN}
        self.bias_ids = np.fromiter(bias, np.int64, len(bias))
        self.bias_values = np.fromiter(bias.values(), np.float64, len(bias))
        self._ngram = params.no_repeat_ngram_size or 0
        self._words = BadWords(params.bad_words_ids)
        self._biased_away = np.array([token for token, value in params.logit_bias.items() if value <= BAN], np.int64)
        # Bans that hold in every step are put together once.
        self._always = np.unique(np.concatenate([self._biased_away, self._words.always]))
        self.allowed = np.unique(np.array(params.allowed_token_ids, np.int64))
        self._min_tokens = params.min_tokens
        ends = np.unique(np.array([*new.eos_token_ids, *params.stop_token_ids], np.int64))
        # An end-of-sequence id may lie outside the model's vocabulary; it cannot be sampled anyway.
        self._ends = ends[ends < vocab_size]
        self.processors = build_processors(params.logits_processors, factories)
        looks_back = self._ngram or self._words.needs_tail or self.processors
        self.tail = TokenHistory(new.token_ids) if looks_back else None

    @property
    def penalises(self) -> bool:
        """Whether the parameters contain a penalty, which needs token counts."""
        return self.repetition != 1.0 or bool(self.presence) or bool(self.frequency)

    @staticmethod
    def is_needed(params: SamplingParams) -> bool:
        """Return whether these parameters change any logit."""
        penalties = (params.repetition_penalty or 1.0) != 1.0 or params.presence_penalty or params.frequency_penalty
        bans = params.no_repeat_ngram_size or params.bad_words_ids or params.allowed_token_ids or params.min_tokens
        return bool(penalties or params.logit_bias or bans or params.logits_processors)

    def bans(self, num_outputs: int) -> Int64:
        """Return the tokens banned after `num_outputs` outputs, apart from those outside allowed_token_ids."""
        bans = [self._always]
        if self.tail is not None and self._ngram:
            bans.append(repeated_ngram_tokens(self.tail.ids, self._ngram))
        if self.tail is not None and self._words.needs_tail:
            bans.append(self._words.next(self.tail.ids))
        if num_outputs < self._min_tokens:
            bans.append(self._ends)
        return np.concatenate(bans) if len(bans) > 1 else self._always

    def add(self, token: int) -> None:
        """Add one more output token."""
        if self.history is not None:
            self.history.add(token)
        if self.tail is not None:
            self.tail.add(token)

    def no_allowed_token_error(self, num_outputs: int) -> NoAllowedToken:
        """Build the error of a request whose parameters ban every token."""
        ends = len(self._ends) if num_outputs < self._min_tokens else 0
        counts = {
            "logit_bias": len(self._biased_away), "bad_words": len(self._words.always), "min_tokens": ends,
            "allowed_token_ids": len(self.allowed),
        }  # fmt: skip
        reasons = [f"{counts['logit_bias']} by logit_bias"] if counts["logit_bias"] else []
        reasons += [f"{counts['bad_words']} by bad words"] if counts["bad_words"] else []
        reasons += [f"{ends} by min_tokens {self._min_tokens}"] if ends else []
        reasons += (
            [f"all but {counts['allowed_token_ids']} by allowed_token_ids"] if counts["allowed_token_ids"] else []
        )
        reasons += [f"some by no_repeat_ngram_size {self._ngram}"] if self._ngram else []
        return NoAllowedToken(f"every token is banned: {', '.join(reasons) or 'by its logits'}", **counts)


def process_logits(logits: Tensor, row_processors: Sequence[RowLogitsProcessor | None], num_outputs: Int64) -> None:
    """Process logits [N, V], float32 or float64, in place: row i with row_processors[i], if any.

    num_outputs[i] is the number of outputs that row i has.
    """
    present = [(row, row_processor) for row, row_processor in enumerate(row_processors) if row_processor is not None]
    penalised = [
        (row, row_processor, row_processor.history)
        for row, row_processor in present
        if row_processor.history is not None
    ]
    sizes = [len(history.token_ids) for _, _, history in penalised]
    if sum(sizes):
        # One gather and one scatter for all rows of the step, however many tokens each has.
        at = _at(logits, [row for row, _, _ in penalised], [history.token_ids for _, _, history in penalised])
        counts = torch.from_numpy(np.concatenate([history.counts for _, _, history in penalised])).to(logits)
        rules = np.array([(s.repetition, s.presence, s.frequency) for _, s, _ in penalised]).repeat(sizes, axis=0)
        repetition, presence, frequency = torch.from_numpy(rules).to(logits).unbind(1)
        values = logits[at]
        values = torch.where(values < 0, values * repetition, values / repetition)
        logits[at] = values - frequency * counts - presence * (counts > 0)
    biased = [(row, row_processor) for row, row_processor in present if len(row_processor.bias_ids)]
    if biased:
        at = _at(logits, [row for row, _ in biased], [row_processor.bias_ids for _, row_processor in biased])
        logits[at] += torch.from_numpy(np.concatenate([row_processor.bias_values for _, row_processor in biased])).to(
            logits
        )
    bans = [row_processor.bans(int(num_outputs[row])) for row, row_processor in present]
    if any(len(ban) for ban in bans):
        logits[_at(logits, [row for row, _ in present], bans)] = -torch.inf
    for row, row_processor in present:
        if len(row_processor.allowed):
            allowed = torch.from_numpy(row_processor.allowed).to(logits.device)
            # Behind the other bans, whose -inf is kept.
            kept = logits[row, allowed]
            logits[row] = -torch.inf
            logits[row, allowed] = kept


def _at(logits: Tensor, rows: Sequence[int], ids: Sequence[Int64]) -> tuple[Tensor, Tensor]:
    row_index = np.repeat(np.asarray(rows, np.int64), [len(some) for some in ids])
    index = torch.from_numpy(np.stack([row_index, np.concatenate(ids)])).to(logits.device)
    return index[0], index[1]


def run_custom_processors(
    logits: Tensor, row_processors: Sequence[RowLogitsProcessor | None]
) -> dict[int, ChairliftError]:
    """Apply each row's custom logits processors in place, row by row; returns the errors by row."""
    failed: dict[int, ChairliftError] = {}
    for row, row_processor in enumerate(row_processors):
        if row_processor is None or row_processor.tail is None or not row_processor.processors:
            continue
        scores = logits[row : row + 1]
        try:
            # Copies: a processor that writes to its arguments must change neither the history nor what others return.
            input_ids = torch.from_numpy(row_processor.tail.ids.copy()).to(logits.device)[None]
            for processor in row_processor.processors:
                scores = processor.apply(input_ids, scores.clone())
            logits[row] = scores[0]
        except SamplingFailed as error:
            failed[row] = error
        except Exception as error:
            failed[row] = as_sampling_error(error)
    return failed


def apply_masks(logits: Tensor, masks: Sequence[Int32 | None]) -> None:
    """Ban in place the tokens that the packed bits of a row, int32 [ceil(V / 32)], lowest first, do not allow."""
    present = [(row, bits) for row, bits in enumerate(masks) if bits is not None]
    if not present:
        return
    packed = torch.from_numpy(np.stack([bits for _, bits in present]).view(np.uint8)).to(logits.device)
    bans = embedding(packed.int(), _bans_of_bytes(logits.device).to(logits.dtype)).flatten(1)[:, : logits.shape[1]]
    # The grammar's vocabulary may be smaller than the model's padded one: no such token is allowed.
    if (short := logits.shape[1] - bans.shape[1]) > 0:
        bans = pad(bans, (0, short), value=-torch.inf)
    if len(present) == len(logits):
        logits.add_(bans)
    else:
        logits.index_add_(0, torch.tensor([row for row, _ in present], device=logits.device), bans)


@cache
def _bans_of_bytes(device: torch.device) -> Tensor:
    """Return the addends of eight logits for each byte of a mask, [256, 8]: ten times as fast as a masked fill."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return torch.from_numpy(np.where(bits == 0, -np.inf, 0.0).astype(np.float32)).to(device)


def as_sampling_error(error: Exception) -> SamplingFailed:
    """Wrap an exception of one request's sampling; its text goes into the details, not into the message."""
    failure = SamplingFailed(f"the sampler raised {type(error).__name__} for this request", cause=str(error))
    failure.__cause__ = error
    return failure
