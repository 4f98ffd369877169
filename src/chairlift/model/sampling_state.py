"""What the sampler remembers of each slot: its parameters in arrays, and for the rows that need it their history.

shaping, in order    repetition penalty     over prompt and output; transformers' rule
                     presence, frequency    over the output alone; OpenAI's rule
                     logit_bias             added; a bias of -100 bans
                     min_tokens             end of sequence and stop tokens are banned until so many outputs exist
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.core.errors import ChairliftError, SamplingFailed
from chairlift.core.sampling import SamplingParams
from chairlift.engine.plan import NewSequence
from chairlift.model.choice import Truncation

BAN = -100.0
"""A logit bias at or below this bans its token."""

Int64 = NDArray[np.int64]


class History:
    """Distinct tokens of one request, and how often each is in its output.

    Owns: two arrays of equal length and the place of each token in them.
    """

    def __init__(self, prompt: Sequence[int], outputs: Sequence[int]) -> None:
        self._ids = np.unique(np.asarray(prompt, np.int64))
        self._counts = np.zeros(len(self._ids), np.int64)
        self._size = len(self._ids)
        self._place = {token: place for place, token in enumerate(self._ids.tolist())}
        for token in outputs:
            self.add(token)

    @property
    def token_ids(self) -> Int64:
        """Distinct tokens, int64 [n]."""
        return self._ids[: self._size]

    @property
    def counts(self) -> Int64:
        """Times each of them is in the output, int64 [n]; 0 where it is in the prompt only."""
        return self._counts[: self._size]

    def add(self, token: int) -> None:
        """Count one more output token."""
        place = self._place.setdefault(token, self._size)
        if place == self._size:
            if self._size == len(self._ids):
                room = max(64, self._size)
                self._ids = np.concatenate([self._ids, np.zeros(room, np.int64)])
                self._counts = np.concatenate([self._counts, np.zeros(room, np.int64)])
            self._ids[place] = token
            self._size += 1
        self._counts[place] += 1


class Shaper:
    """All that moves the logits of one request before the distribution is made; None of it is random."""

    def __init__(self, new: NewSequence, vocab_size: int) -> None:
        """Read the parameters; raises TokenOutOfRange when they name a token that does not exist."""
        params = new.params
        params.check_vocabulary(vocab_size)
        self.repetition = 1.0 if params.repetition_penalty is None else params.repetition_penalty
        self.presence, self.frequency = params.presence_penalty, params.frequency_penalty
        self.history: History | None = None
        if self.penalises:
            start = len(new.token_ids) - new.num_prior_outputs
            prompt = new.token_ids[:start] if self.repetition != 1.0 else ()
            self.history = History(prompt, new.token_ids[start:])
        bias = {token: value for token, value in params.logit_bias.items() if value > BAN}
        self.bias_ids = np.fromiter(bias, np.int64, len(bias))
        self.bias_values = np.fromiter(bias.values(), np.float64, len(bias))
        self.banned = np.array([token for token, value in params.logit_bias.items() if value <= BAN], np.int64)
        self.min_tokens = params.min_tokens
        self.ends = np.unique(np.array([*new.eos_token_ids, *params.stop_token_ids], np.int64))
        self.ends = self.ends[self.ends < vocab_size]

    @property
    def penalises(self) -> bool:
        """Whether a history is needed."""
        return self.repetition != 1.0 or bool(self.presence) or bool(self.frequency)

    @staticmethod
    def wanted(params: SamplingParams) -> bool:
        """Whether these parameters move any logit."""
        penalties = (params.repetition_penalty or 1.0) != 1.0 or params.presence_penalty or params.frequency_penalty
        return bool(penalties or params.logit_bias or params.min_tokens)

    def bans(self, num_outputs: int) -> Int64:
        """Tokens that cannot be drawn now."""
        return np.concatenate([self.banned, self.ends]) if num_outputs < self.min_tokens else self.banned


def shape(logits: Tensor, shapers: Sequence[Shaper], num_outputs: Int64) -> None:
    """Move logits [N, V] float32 or float64 in place, row i by shapers[i] after num_outputs[i] outputs."""
    penalised = [(row, shaper, shaper.history) for row, shaper in enumerate(shapers) if shaper.history is not None]
    sizes = [len(history.token_ids) for _, _, history in penalised]
    if sum(sizes):
        at = _at(logits, [row for row, _, _ in penalised], [history.token_ids for _, _, history in penalised])
        counts = torch.from_numpy(np.concatenate([history.counts for _, _, history in penalised])).to(logits)
        rules = np.array([(s.repetition, s.presence, s.frequency) for _, s, _ in penalised]).repeat(sizes, axis=0)
        repetition, presence, frequency = torch.from_numpy(rules).to(logits).unbind(1)
        values = logits[at]
        values = torch.where(values < 0, values * repetition, values / repetition)
        logits[at] = values - frequency * counts - presence * (counts > 0)
    biased = [(row, shaper) for row, shaper in enumerate(shapers) if len(shaper.bias_ids)]
    if biased:
        at = _at(logits, [row for row, _ in biased], [shaper.bias_ids for _, shaper in biased])
        logits[at] += torch.from_numpy(np.concatenate([shaper.bias_values for _, shaper in biased])).to(logits)
    bans = [shaper.bans(int(count)) for shaper, count in zip(shapers, num_outputs, strict=True)]
    if any(len(ban) for ban in bans):
        logits[_at(logits, range(len(bans)), bans)] = -torch.inf


def _at(logits: Tensor, rows: Sequence[int], ids: Sequence[Int64]) -> tuple[Tensor, Tensor]:
    row_index = np.repeat(np.asarray(rows, np.int64), [len(some) for some in ids])
    index = torch.from_numpy(np.stack([row_index, np.concatenate(ids)])).to(logits.device)
    return index[0], index[1]


class SamplingState:
    """Parameters and progress of all slots.

    Attributes:
        seed: int64 [slots].
        num_outputs: int64 [slots], outputs so far; the position of the next draw.
        greedy: bool [slots].
        logprobs: int64 [slots], -1 for none.
        shapers: by slot, those whose logits are moved.
        refused: by slot, those that cannot be sampled at all, and why.
    """

    def __init__(self, max_slots: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.seed = np.zeros(max_slots, np.int64)
        self.num_outputs = np.zeros(max_slots, np.int64)
        self.greedy = np.ones(max_slots, bool)
        self.logprobs = np.full(max_slots, -1, np.int64)
        self._rules = Truncation(
            np.ones(max_slots), np.zeros(max_slots, np.int64), np.ones(max_slots), np.zeros(max_slots)
        )
        self.shapers: dict[int, Shaper] = {}
        self.refused: dict[int, ChairliftError] = {}

    def admit(self, new: NewSequence) -> None:
        """Replace what the slot held. A request whose state cannot be made is refused when it is sampled."""
        slot, params = new.slot, new.params
        self.release(slot)
        self.num_outputs[slot] = new.num_prior_outputs
        self.greedy[slot], self.logprobs[slot] = True, -1
        try:
            assert params.seed is not None, "sampling parameters are resolved before they reach the runner"
            self.seed[slot] = params.seed
            self.logprobs[slot] = -1 if params.logprobs is None else params.logprobs
            self._rules.temperature[slot] = 1.0 if params.temperature is None else params.temperature
            self._rules.top_k[slot] = max(0, params.top_k or 0)
            self._rules.top_p[slot] = 1.0 if params.top_p is None else params.top_p
            self._rules.min_p[slot] = params.min_p or 0.0
            if Shaper.wanted(params):
                self.shapers[slot] = Shaper(new, self._vocab_size)
            self.greedy[slot] = params.greedy
        except ChairliftError as error:
            self.refused[slot] = error
        except Exception as error:
            self.refused[slot] = raised(error)

    def release(self, slot: int) -> None:
        """Forget a slot, known or not."""
        self.shapers.pop(slot, None)
        self.refused.pop(slot, None)

    def rules(self, slots: Int64) -> Truncation:
        """Return the distribution's parameters of some slots."""
        return self._rules.take(slots)

    def observe(self, slots: Int64, tokens: NDArray[np.int32], rows: Int64) -> dict[int, ChairliftError]:
        """Count the tokens that some rows drew, at most one a slot; returns the rows whose history failed."""
        self.num_outputs[slots[rows]] += 1
        faults: dict[int, ChairliftError] = {}
        if not self.shapers:
            return faults
        for row in rows.tolist():
            shaper = self.shapers.get(int(slots[row]))
            if shaper is None or shaper.history is None:
                continue
            try:
                shaper.history.add(int(tokens[row]))
            except Exception as error:
                faults[row] = raised(error)
        return faults


def raised(error: Exception) -> SamplingFailed:
    """Wrap an exception of one request's sampling; its own words go into the details, not into the sentence."""
    failure = SamplingFailed(f"the sampler raised {type(error).__name__} for this request", cause=str(error))
    failure.__cause__ = error
    return failure
