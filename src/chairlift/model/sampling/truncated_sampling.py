"""One token a row from shaped logits: temperature, truncation, then the inverse of the running sum.

The meaning of each rule is transformers' (its logits warpers, applied in this order); its ties are settled:

    top_k   tokens as likely as the k-th all stay, as in transformers
    top_p   likeliest first, of equals the lower id first: those stay before which less than top_p has been summed, so
            the smallest set whose probability reaches top_p, at least one token
    min_p   those stay whose probability is at least min_p times that of the likeliest
    then    typical_p, epsilon_cutoff, eta_cutoff (entropy_rules.py)
    draw    weights of the kept tokens are summed in float64 by ascending token id; the first token whose sum exceeds
            number * total is drawn

All sums run along one row in one order, so a row's token does not depend on the rows beside it. A rule that needs the
order of tokens first looks at a few hundred of the likeliest, and sorts the vocabulary only where these do not settle
it; both ways give the same bits where sums are sequential (CPU).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.core.sampling import SamplingParams
from chairlift.model.sampling.entropy_truncation import truncate

Rows = NDArray[np.int64]
Float64 = NDArray[np.float64]
Floats = NDArray[np.float32] | NDArray[np.float64]

CHUNK_ELEMENTS = 1 << 22
"""Logits that are worked on at once in float64; bounds the workspace of sampling."""

_WIDE_TOP_K = 1024
_TOP_P_WIDTH = 512


@dataclass(frozen=True, slots=True)
class Truncation:
    """Parameters of the distribution, one entry a row.

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
    def neutral(cls, count: int) -> "Truncation":
        """Return rules of so many rows that keep all."""
        ones, zeros = np.ones(count), np.zeros(count)
        return cls(ones, np.zeros(count, np.int64), ones.copy(), zeros, ones.copy(), zeros.copy(), zeros.copy())

    def set(self, row: int, params: SamplingParams) -> None:
        """Take over the resolved parameters of one request."""
        self.temperature[row] = 1.0 if params.temperature is None else params.temperature
        self.top_k[row] = max(0, params.top_k or 0)
        self.top_p[row] = 1.0 if params.top_p is None else params.top_p
        self.min_p[row] = params.min_p or 0.0
        self.typical_p[row] = 1.0 if params.typical_p is None else params.typical_p
        self.epsilon[row] = params.epsilon_cutoff or 0.0
        self.eta[row] = params.eta_cutoff or 0.0

    def take(self, rows: Rows) -> "Truncation":
        """Return the entries of some rows."""
        return Truncation(
            self.temperature[rows], self.top_k[rows], self.top_p[rows], self.min_p[rows], self.typical_p[rows],
            self.epsilon[rows], self.eta[rows],
        )  # fmt: skip

    @property
    def by_entropy(self) -> NDArray[np.bool_]:
        """Rows that need the whole distribution."""
        return (self.typical_p < 1) | (self.epsilon > 0) | (self.eta > 0)


def chunks(rows: Rows, vocab_size: int) -> Iterator[Rows]:
    """Cut rows into runs whose logits fit the workspace."""
    step = max(1, CHUNK_ELEMENTS // vocab_size)
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


def choose(logits: Tensor, rules: Truncation, numbers: Float64) -> Rows:
    """Draw one token id for each row.

    Args:
        logits: [N, V] float32 or float64, no NaN, the largest of each row finite; -inf is a banned token.
        rules: N entries.
        numbers: float64 [N] in [0, 1), one draw each.

    Returns:
        int64 [N].
    """
    vocab_size = logits.shape[1]
    tokens = np.empty(len(numbers), np.int64)
    top_k = np.where(rules.top_k >= vocab_size, 0, rules.top_k)
    by_entropy = rules.by_entropy
    ordered = ((top_k > 0) | (rules.top_p < 1)) & ~by_entropy
    for rows in chunks(np.flatnonzero(by_entropy), vocab_size):
        tokens[rows] = _by_entropy(_picked(logits, rows), rules.take(rows), numbers[rows]).cpu().numpy()
    for rows in chunks(np.flatnonzero(~(ordered | by_entropy)), vocab_size):
        tokens[rows] = _by_id(_picked(logits, rows), rules.take(rows), numbers[rows]).cpu().numpy()
    for rows in chunks(np.flatnonzero(ordered), vocab_size):
        narrow = rows[top_k[rows] <= _WIDE_TOP_K]
        width = 2 * int(top_k[narrow].max(initial=_TOP_P_WIDTH // 2)) + 64
        unsure = rows[top_k[rows] > _WIDE_TOP_K]
        for some, among in ((narrow, width), (unsure, vocab_size)):
            if not len(some):
                continue
            found, sure = _by_rank(_picked(logits, some), rules.take(some), numbers[some], among)
            tokens[some] = found.cpu().numpy()
            left = some[~sure.cpu().numpy()]
            if len(left):
                found, _ = _by_rank(_picked(logits, left), rules.take(left), numbers[left], vocab_size)
                tokens[left] = found.cpu().numpy()
    return tokens


def leading(logits: Tensor) -> tuple[Floats, Rows]:
    """Return the largest logit of each row, float32 or float64 [N], and its id, int64 [N]; of equals the lowest id.

    NaN counts as the largest.
    """
    if logits.device.type != "cpu":
        peaks, ids = logits.max(-1)
        return wide(peaks).cpu().numpy(), ids.cpu().numpy()
    numbers = wide(logits).numpy()
    best = numbers.argmax(1)  # ten times as fast as torch's
    return numbers[np.arange(len(best)), best], best


def wide(logits: Tensor) -> Tensor:
    """Return them as float32, or as the float64 that they are."""
    return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()


def likeliest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return values and ids, [N, count] each, of the largest logits; of equals the lower id first."""
    vocab_size = logits.shape[1]
    count = min(count, vocab_size)
    values, ids = _leading(logits, 2 * count + 64)
    if values.shape[1] < vocab_size and count:
        unsure = (values[:, count - 1] <= values[:, -1]).nonzero().flatten()
        if len(unsure):
            exact_values, exact_ids = _leading(logits[unsure], vocab_size)
            values[unsure] = exact_values[:, : values.shape[1]]
            ids[unsure] = exact_ids[:, : values.shape[1]]
    return values[:, :count], ids[:, :count]


def _picked(logits: Tensor, rows: Rows) -> Tensor:
    return logits if len(rows) == logits.shape[0] else logits[torch.from_numpy(rows).to(logits.device)]


def _leading(logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Likeliest first, of equals the lower id; those equal to the last may lack some of theirs, unless width is V."""
    if width >= logits.shape[1]:
        values, ids = logits.sort(dim=-1, descending=True, stable=True)
        return values, ids
    ids = logits.topk(width, dim=-1, sorted=False).indices.sort(dim=-1).values
    values, order = logits.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


def _column(values: NDArray[np.generic], like: Tensor) -> Tensor:
    return torch.from_numpy(values).to(like.device)[:, None]


def _weights(logits: Tensor, peak: Tensor, rules: Truncation) -> Tensor:
    return ((logits.double() - peak.double()) / _column(rules.temperature, logits)).exp_()


def _search(weights: Tensor, numbers: Float64) -> Tensor:
    sums = weights.cumsum(-1)
    return torch.searchsorted(sums, sums[:, -1:] * _column(numbers, weights), right=True)


def _by_id(logits: Tensor, rules: Truncation, numbers: Float64) -> Tensor:
    """Draw where no order of tokens is needed."""
    weights = _weights(logits, logits.amax(-1, keepdim=True), rules)
    if rules.min_p.any():
        weights.masked_fill_(weights < _column(rules.min_p, logits), 0.0)
    return _search(weights, numbers)[:, 0]


def _by_entropy(logits: Tensor, rules: Truncation, numbers: Float64) -> Tensor:
    """Draw where a rule looks at the whole distribution that the others leave."""
    _, ids, weights, kept, _ = _ranked(logits, rules, logits.shape[1])
    by_id = torch.zeros_like(weights).scatter_(1, ids, weights.masked_fill_(~kept, 0.0))
    left = truncate(by_id, *(_column(rule, logits) for rule in (rules.typical_p, rules.epsilon, rules.eta)))
    return _search(left, numbers)[:, 0]


def _by_rank(logits: Tensor, rules: Truncation, numbers: Float64, width: int) -> tuple[Tensor, Tensor]:
    """Draw among the `width` likeliest; the second tensor, bool [N], says where these settled the matter."""
    values, ids, weights, kept, is_open = _ranked(logits, rules, width)
    sure = torch.ones(len(logits), dtype=torch.bool, device=logits.device)
    if values.shape[1] < logits.shape[1]:
        sure = ~((kept | is_open) & (values <= values[:, -1:])).any(-1)
    ids, order = ids.sort(dim=-1)
    found = _search(weights.masked_fill_(~kept, 0.0).gather(1, order), numbers)
    return ids.gather(1, found)[:, 0], sure


def _ranked(logits: Tensor, rules: Truncation, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return values, ids, weights and whether top_k, top_p and min_p keep them, of the `width` likeliest in order.

    And whether a token is one of top_k: where others that are as likely may lie beyond `width`, top_p knows no total.
    """
    vocab_size = logits.shape[1]
    values, ids = _leading(logits, width)
    peak = values[:, :1]
    limit = np.where((rules.top_k == 0) | (rules.top_k > vocab_size), vocab_size, rules.top_k)
    last = _column(np.minimum(limit, values.shape[1]) - 1, logits)
    kept = (values >= values.gather(1, last)) | _column(limit == vocab_size, logits)
    is_open = kept & _column(limit < vocab_size, logits)
    weights = _weights(values, peak, rules).masked_fill_(~kept, 0.0)
    sums = weights.cumsum(-1)
    total = sums[:, -1:].clone()
    whole = np.flatnonzero((limit == vocab_size) & (rules.top_p < 1))
    if len(whole):
        at = torch.from_numpy(whole).to(logits.device)
        total[at] = _weights(logits[at], peak[at], rules.take(whole)).cumsum(-1)[:, -1:]
    before = sums.roll(1, -1)
    before[:, 0] = 0.0
    top_p = _column(rules.top_p, logits)
    kept &= (before < top_p * total) | (top_p >= 1)
    kept &= weights >= _column(rules.min_p, logits)
    return values, ids, weights, kept, is_open
