"""Log-probabilities of tokens, of raw logits, in float64 whatever the model's dtype."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.core.request import TokenLogprob
from chairlift.model.sampling.sampling_ops import Drawing

Int64 = NDArray[np.int64]


def token_logprobs(raw: Tensor, tokens: Int64, counts: Int64, drawing: Drawing) -> list[TokenLogprob]:
    """Log-probabilities of chosen tokens and of the likeliest, of raw logits, summed in float64.

    Args:
        raw: [N, V] float32 or float64, the largest of each row finite.
        tokens: int64 [N], chosen.
        counts: int64 [N], how many of the likeliest; of equals the lower id comes first.
        drawing: who works through the rows.
    """
    peaks = raw.amax(-1, keepdim=True)
    peak, rest = peaks.double(), drawing.log_sums(raw, peaks)
    chosen = raw.gather(1, torch.from_numpy(tokens).to(raw.device)[:, None]).double() - peak - rest
    values, ids = drawing.likeliest(raw, int(counts.max()))
    top_values, top_ids = (values.double() - peak - rest).tolist(), ids.tolist()
    return [
        TokenLogprob(token, logprob, tuple(zip(top_ids[row][:count], top_values[row][:count], strict=True)))
        for row, (token, logprob, count) in enumerate(
            zip(tokens.tolist(), chosen[:, 0].tolist(), counts.tolist(), strict=True)
        )
    ]
