"""LMHeadOutput: the values of each row that the lm_head returns to the sampler, only those that the sampler needs."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.engine.step_plan import TokenMasks
from chairlift.model.sampling.logits_processing import apply_masks
from chairlift.model.sampling.truncated_sampling import Floats, argmax, chunks, wide

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LogitsRequest:
    """The values of R rows that the sampler needs beside the largest logit of each.

    Attributes:
        needs_logits: bool [R], rows whose logits are needed.
        masks: token masks of some rows, by ascending row; the other rows allow every token.
    """

    needs_logits: NDArray[np.bool_]
    masks: TokenMasks | None = None

    @property
    def masked_rows(self) -> Int64:
        """The rows that have masks, int64 [M]."""
        return np.empty(0, np.int64) if self.masks is None else self.masks.sample_indices.astype(np.int64)


@dataclass(frozen=True, slots=True)
class LMHeadOutput:
    """The lm_head's values of R rows.

    Attributes:
        max_logits: float32 or float64 [R], the largest logit of each row, masks ignored; NaN where a logit is NaN.
        argmax_ids: int64 [R], its id; among equal logits the lowest (any of those that a soft cap has made equal).
        masked_max_logits: the same dtype, [M], the largest logit that the row's mask allows; -inf without one.
        masked_argmax_ids: int64 [M], its id, with the same ties; below V without an allowed token, too.
        logits: float32 or float64 [N, V] of the rows that need logits, in order; -inf where a mask bans a token.
    """

    max_logits: Floats
    argmax_ids: Int64
    masked_max_logits: Floats
    masked_argmax_ids: Int64
    logits: Tensor


def compute_lm_head_output(logits: Tensor, request: LogitsRequest) -> LMHeadOutput:
    """Compute the output from all logits, [R, V] of any floating dtype on any device; may change them."""
    max_logits, argmax_ids = argmax(logits)
    masked_max_logits, masked_argmax_ids = max_logits[:0], argmax_ids[:0]
    if request.masks is not None and len(rows := request.masked_rows):
        parts = []
        for some in chunks(np.arange(len(rows)), logits.shape[1]):
            at = torch.from_numpy(rows[some]).to(logits.device)
            masked_logits = logits[at]
            apply_masks(masked_logits, list(request.masks.bitmask[some]))
            parts.append(argmax(masked_logits))
            # argmax has read the raw logits above, so these may be overwritten by the masked ones.
            if request.needs_logits[rows[some]].any():
                logits[at] = masked_logits
        masked_max_logits = np.concatenate([max_logit for max_logit, _ in parts])
        masked_argmax_ids = np.concatenate([ids for _, ids in parts])
    kept = (
        logits
        if request.needs_logits.all()
        else logits[torch.from_numpy(np.flatnonzero(request.needs_logits)).to(logits.device)]
    )
    return LMHeadOutput(max_logits, argmax_ids, masked_max_logits, masked_argmax_ids, wide(kept))
