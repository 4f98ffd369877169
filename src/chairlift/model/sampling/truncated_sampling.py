"""sample_tokens: samples one token per row of processed logits: temperature, truncation, inverse of the running sum.

The rules are transformers' logits warpers, applied in this order, with defined ties:

    top_k   keeps all tokens as likely as the k-th, as in transformers
    top_p   orders tokens by probability, the lower id first among equals; keeps tokens as long as the sum before them
            is below top_p, so the smallest set whose probability reaches top_p, at least one token
    min_p   keeps tokens whose probability is at least min_p times that of the most likely
    then    typical_p, epsilon_cutoff, eta_cutoff (entropy_truncation.py)
    sample  sums the weights of the kept tokens in float64 by ascending token id; returns the first token whose sum
            exceeds number * total

All sums run along one row in one order, so a row's token does not depend on the other rows. A rule that needs the
order of tokens first uses a few hundred of the most likely, and sorts the vocabulary only where these do not decide;
both ways give the same bits where sums are sequential (CPU).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.core.sampling_params import SamplingParams
from chairlift.model.sampling.entropy_truncation import truncate

Rows = NDArray[np.int64]
Float64 = NDArray[np.float64]
Floats = NDArray[np.float32] | NDArray[np.float64]

CHUNK_ELEMENTS = 1 << 22
"""Logits processed at once in float64; bounds the workspace of sampling."""

_WIDE_TOP_K = 1024
_TOP_P_WIDTH = 512


@dataclass(frozen=True, slots=True)
class TruncationParams:
    """The truncation parameters of N rows, one entry per row.

    Attributes:
        temperature: float64 [N], above 0.
        top_k: int64 [N], 0 keeps all.
        top_p: float64 [N], 1 keeps all.
        min_p: float64 [N], 0 keeps all.
        typical_p: float64 [N], 1 keeps all.
        epsilon: float64 [N], 0 keeps all.
        eta: float64 [N], 0 keeps all.
    """

    temperature: Float64
    top_k: Rows
    top_p: Float64
    min_p: Float64
    typical_p: Float64
    epsilon: Float64
    eta: Float64

    @classmethod
    def neutral(cls, count: int) -> "TruncationParams":
        """Return parameters of `count` rows that keep all tokens."""
        ones, zeros = np.ones(count), np.zeros(count)
        return cls(ones, np.zeros(count, np.int64), ones.copy(), zeros, ones.copy(), zeros.copy(), zeros.copy())

    def set(self, row: int, params: SamplingParams) -> None:
        """Set a row from the resolved parameters of one request."""
        self.temperature[row] = 1.0 if params.temperature is None else params.temperature
        self.top_k[row] = max(0, params.top_k or 0)
        self.top_p[row] = 1.0 if params.top_p is None else params.top_p
        self.min_p[row] = params.min_p or 0.0
        self.typical_p[row] = 1.0 if params.typical_p is None else params.typical_p
        self.epsilon[row] = params.epsilon_cutoff or 0.0
        self.eta[row] = params.eta_cutoff or 0.0

    def take(self, rows: Rows) -> "TruncationParams":
        """Return the entries of some rows."""
        return TruncationParams(
            self.temperature[rows], self.top_k[rows], self.top_p[rows], self.min_p[rows], self.typical_p[rows],
            self.epsilon[rows], self.eta[rows],
        )  # fmt: skip

    @property
    def by_entropy(self) -> NDArray[np.bool_]:
        """Whether each row needs the whole distribution, bool [N]."""
        return (self.typical_p < 1) | (self.epsilon > 0) | (self.eta > 0)


def chunks(rows: Rows, vocab_size: int) -> Iterator[Rows]:
    """Split rows into chunks whose logits fit the workspace."""
    step = max(1, CHUNK_ELEMENTS // vocab_size)
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


def sample_tokens(logits: Tensor, rules: TruncationParams, numbers: Float64) -> Rows:
    """Sample one token id for each row.

    Args:
        logits: [N, V] float32 or float64, no NaN, the largest of each row finite; -inf is a banned token.
        rules: N entries.
        numbers: float64 [N] in [0, 1), one random number per row.

    Returns:
        int64 [N].
    """
    vocab_size = logits.shape[1]
    tokens = np.empty(len(numbers), np.int64)
    top_k = np.where(rules.top_k >= vocab_size, 0, rules.top_k)
    by_entropy = rules.by_entropy
    ordered = ((top_k > 0) | (rules.top_p < 1)) & ~by_entropy
    for rows in chunks(np.flatnonzero(by_entropy), vocab_size):
        tokens[rows] = _sample_by_entropy(_select_rows(logits, rows), rules.take(rows), numbers[rows]).cpu().numpy()
    for rows in chunks(np.flatnonzero(~(ordered | by_entropy)), vocab_size):
        tokens[rows] = _sample_by_id(_select_rows(logits, rows), rules.take(rows), numbers[rows]).cpu().numpy()
    for rows in chunks(np.flatnonzero(ordered), vocab_size):
        narrow_rows = rows[top_k[rows] <= _WIDE_TOP_K]
        # Wider than the largest top_k, so that tokens as likely as the k-th are usually among them.
        width = 2 * int(top_k[narrow_rows].max(initial=_TOP_P_WIDTH // 2)) + 64
        wide_rows = rows[top_k[rows] > _WIDE_TOP_K]
        for selected, num_ranked in ((narrow_rows, width), (wide_rows, vocab_size)):
            if not len(selected):
                continue
            sampled, sure = _sample_by_rank(
                _select_rows(logits, selected), rules.take(selected), numbers[selected], num_ranked
            )
            tokens[selected] = sampled.cpu().numpy()
            undecided = selected[~sure.cpu().numpy()]
            if len(undecided):
                sampled, _ = _sample_by_rank(
                    _select_rows(logits, undecided), rules.take(undecided), numbers[undecided], vocab_size
                )
                tokens[undecided] = sampled.cpu().numpy()
    return tokens


def argmax(logits: Tensor) -> tuple[Floats, Rows]:
    """Return the largest logit of each row, float32 or float64 [N], and its id, int64 [N].

    Among equal logits the lowest id is returned. NaN counts as the largest.
    """
    if logits.device.type != "cpu":
        max_logits, ids = logits.max(-1)
        return wide(max_logits).cpu().numpy(), ids.cpu().numpy()
    numbers = wide(logits).numpy()
    argmax_ids = numbers.argmax(1)  # ten times as fast as torch's
    return numbers[np.arange(len(argmax_ids)), argmax_ids], argmax_ids


def wide(logits: Tensor) -> Tensor:
    """Return the logits as float32; float64 logits are returned unchanged."""
    return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()


def top_k_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return values and ids, [N, count] each, of the largest logits; the lower id first among equal logits."""
    vocab_size = logits.shape[1]
    count = min(count, vocab_size)
    values, ids = _leading(logits, 2 * count + 64)
    if values.shape[1] < vocab_size and count:
        # Tokens as likely as the last one may be missing, and of equals the lowest ids are wanted.
        wide_rows = (values[:, count - 1] <= values[:, -1]).nonzero().flatten()
        if len(wide_rows):
            exact_values, exact_ids = _leading(logits[wide_rows], vocab_size)
            values[wide_rows] = exact_values[:, : values.shape[1]]
            ids[wide_rows] = exact_ids[:, : values.shape[1]]
    return values[:, :count], ids[:, :count]


def _select_rows(logits: Tensor, rows: Rows) -> Tensor:
    return logits if len(rows) == logits.shape[0] else logits[torch.from_numpy(rows).to(logits.device)]


def _leading(logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return the `width` largest logits and their ids, in descending order, the lower id first among equal logits.

    Unless width is V, some logits equal to the last may be missing.
    """
    if width >= logits.shape[1]:
        values, ids = logits.sort(dim=-1, descending=True, stable=True)
        return values, ids
    # topk leaves the order of equals open: sorted by id first, a stable sort by value settles it.
    ids = logits.topk(width, dim=-1, sorted=False).indices.sort(dim=-1).values
    values, order = logits.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


def _column(values: NDArray[np.generic], like: Tensor) -> Tensor:
    return torch.from_numpy(values).to(like.device)[:, None]


def _weights(logits: Tensor, max_logit: Tensor, rules: TruncationParams) -> Tensor:
    return ((logits.double() - max_logit.double()) / _column(rules.temperature, logits)).exp_()


def _search(weights: Tensor, numbers: Float64) -> Tensor:
    sums = weights.cumsum(-1)
    return torch.searchsorted(sums, sums[:, -1:] * _column(numbers, weights), right=True)


def _sample_by_id(logits: Tensor, rules: TruncationParams, numbers: Float64) -> Tensor:
    """Sample rows whose rules need no order of tokens."""
    weights = _weights(logits, logits.amax(-1, keepdim=True), rules)
    if rules.min_p.any():
        weights.masked_fill_(weights < _column(rules.min_p, logits), 0.0)
    return _search(weights, numbers)[:, 0]


def _sample_by_entropy(logits: Tensor, rules: TruncationParams, numbers: Float64) -> Tensor:
    """Sample rows with a rule that needs the whole distribution left by the other rules."""
    _, ids, weights, kept, _ = _ranked(logits, rules, logits.shape[1])
    by_id = torch.zeros_like(weights).scatter_(1, ids, weights.masked_fill_(~kept, 0.0))
    remaining = truncate(by_id, *(_column(rule, logits) for rule in (rules.typical_p, rules.epsilon, rules.eta)))
    return _search(remaining, numbers)[:, 0]


def _sample_by_rank(logits: Tensor, rules: TruncationParams, numbers: Float64, width: int) -> tuple[Tensor, Tensor]:
    """Sample among the `width` most likely; the second tensor, bool [N], is true where these decide the result."""
    values, ids, weights, kept, is_open = _ranked(logits, rules, width)
    sure = torch.ones(len(logits), dtype=torch.bool, device=logits.device)
    if values.shape[1] < logits.shape[1]:
        # A kept token as unlikely as the last one of the width may have equals beyond it.
        sure = ~((kept | is_open) & (values <= values[:, -1:])).any(-1)
    # The running sum goes by token id, as it does over the whole vocabulary.
    ids, order = ids.sort(dim=-1)
    sampled = _search(weights.masked_fill_(~kept, 0.0).gather(1, order), numbers)
    return ids.gather(1, sampled)[:, 0], sure


def _ranked(logits: Tensor, rules: TruncationParams, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return values, ids, weights of the `width` most likely in order, and whether top_k, top_p and min_p keep them.

    The last tensor is whether a token is one of top_k. The total for top_p is unknown where equally likely tokens may
    lie beyond `width`.
    """
    vocab_size = logits.shape[1]
    values, ids = _leading(logits, width)
    max_logit = values[:, :1]
    limit = np.where((rules.top_k == 0) | (rules.top_k > vocab_size), vocab_size, rules.top_k)
    last = _column(np.minimum(limit, values.shape[1]) - 1, logits)
    kept = (values >= values.gather(1, last)) | _column(limit == vocab_size, logits)
    is_open = kept & _column(limit < vocab_size, logits)
    weights = _weights(values, max_logit, rules).masked_fill_(~kept, 0.0)
    sums = weights.cumsum(-1)
    # With top_k, the total for top_p is that of its tokens; without it, that of the whole row, computed below.
    total = sums[:, -1:].clone()
    whole = np.flatnonzero((limit == vocab_size) & (rules.top_p < 1))
    if len(whole):
        at = torch.from_numpy(whole).to(logits.device)
        total[at] = _weights(logits[at], max_logit[at], rules.take(whole)).cumsum(-1)[:, -1:]
    before = sums.roll(1, -1)
    before[:, 0] = 0.0
    top_p = _column(rules.top_p, logits)
    kept &= (before < top_p * total) | (top_p >= 1)
    kept &= weights >= _column(rules.min_p, logits)
    return values, ids, weights, kept, is_open
