"""Scored: what the head of a model says of each row, which is no more than the sampler wants to know."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.engine.step_plan import TokenMasks
from chairlift.model.sampling.logits_processing import apply_masks
from chairlift.model.sampling.truncated_sampling import Floats, chunks, leading, wide

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What there is to say of R rows beside the largest logit of each.

    Attributes:
        kept: bool [R], rows whose logits are wanted.
        masks: what may be drawn in some rows, their places ascending; everything in the others.
    """

    kept: NDArray[np.bool_]
    masks: TokenMasks | None = None

    @property
    def masked(self) -> Int64:
        """The rows of masks, int64 [M]."""
        return np.empty(0, np.int64) if self.masks is None else self.masks.sample_indices.astype(np.int64)


@dataclass(frozen=True, slots=True)
class Scored:
    """What a head says of R rows.

    Attributes:
        peaks: float32 or float64 [R], the largest logit of each row, whatever its mask says; NaN where one is.
        best: int64 [R], its id; of equals the lowest (of those that a soft cap has made equal, any).
        allowed_peaks: likewise [M], the largest that the mask of a masked row allows; -inf where that is none.
        allowed_best: int64 [M], its id, likewise; below V where there is none, too.
        logits: float32 or float64 [N, V] of the rows that are kept, in order; -inf where a mask bans.
    """

    peaks: Floats
    best: Int64
    allowed_peaks: Floats
    allowed_best: Int64
    logits: Tensor


def scored(logits: Tensor, wanted: Wanted) -> Scored:
    """Say it of all logits, [R, V] of any floating dtype on any device; they may be changed."""
    peaks, best = leading(logits)
    allowed_peaks, allowed_best = peaks[:0], best[:0]
    if wanted.masks is not None and len(rows := wanted.masked):
        found = []
        for some in chunks(np.arange(len(rows)), logits.shape[1]):
            at = torch.from_numpy(rows[some]).to(logits.device)
            left = logits[at]
            apply_masks(left, list(wanted.masks.bitmask[some]))
            found.append(leading(left))
            if wanted.kept[rows[some]].any():
                logits[at] = left
        allowed_peaks = np.concatenate([peak for peak, _ in found])
        allowed_best = np.concatenate([ids for _, ids in found])
    kept = logits if wanted.kept.all() else logits[torch.from_numpy(np.flatnonzero(wanted.kept)).to(logits.device)]
    return Scored(peaks, best, allowed_peaks, allowed_best, wide(kept))
