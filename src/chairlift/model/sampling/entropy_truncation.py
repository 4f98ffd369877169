"""truncate: applies the rules that need the whole distribution: typical_p, epsilon_cutoff, eta_cutoff, in this order.

    typical_p   Meister, Pimentel, Wiher, Cotterell, "Locally Typical Sampling" (2022): orders tokens by the distance of
                their surprise -log p from the entropy, nearest first; keeps tokens as long as the sum before them is
                below typical_p, and every token as near as the last of these
    epsilon     Hewitt, Manning, Liang, "Truncation Sampling as Language Model Desmoothing" (2022): keeps tokens whose
                probability reaches epsilon, and the most likely token
    eta         the same with min(eta, sqrt(eta) * exp(-entropy))

The rules are those of transformers' warpers. Each works on the renormalised result of the rule before it. Sums run
along one row in one order, so a row does not depend on the other rows.
"""

import torch
from torch import Tensor


def truncate(weights: Tensor, typical_p: Tensor, epsilon: Tensor, eta: Tensor) -> Tensor:
    """Set the weights of dropped tokens to 0 and return the weights; at least one token of a row stays.

    Args:
        weights: float64 [N, V], at least 0, some above; not normalised; changed in place.
        typical_p: float64 [N, 1], 1 keeps all.
        epsilon: float64 [N, 1], 0 keeps all.
        eta: float64 [N, 1], 0 keeps all.
    """
    if (typical_p < 1).any():
        weights.masked_fill_(_atypical(weights, typical_p), 0.0)
    if (epsilon > 0).any():
        weights.masked_fill_(_unlikely(weights, epsilon), 0.0)
    if (eta > 0).any():
        entropy = _sum(torch.special.entr(_normalised(weights)))
        weights.masked_fill_(_unlikely(weights, torch.minimum(eta, eta.sqrt() * torch.exp(-entropy))), 0.0)
    return weights


def _sum(rows: Tensor) -> Tensor:
    return rows.cumsum(-1)[:, -1:]


def _normalised(weights: Tensor) -> Tensor:
    return weights / _sum(weights)


def _atypical(weights: Tensor, typical_p: Tensor) -> Tensor:
    likely = _normalised(weights)
    distance = (-likely.log() - _sum(torch.special.entr(likely))).abs_()  # infinite where the weight is 0
    ordered, order = distance.sort(dim=-1, stable=True)
    last = (likely.gather(1, order).cumsum(-1) < typical_p).sum(-1, keepdim=True).clamp_(max=weights.shape[1] - 1)
    # By distance and not by rank, so that tokens of equal surprise are kept or dropped together.
    return (distance > ordered.gather(1, last)) & (typical_p < 1)


def _unlikely(weights: Tensor, bound: Tensor) -> Tensor:
    # The most likely token always stays, also if its probability is below the bound.
    return (_normalised(weights) < bound) & (weights < weights.amax(-1, keepdim=True))
