"""token_logprobs: computes logprobs of tokens from raw logits, in float64 for every dtype of the model."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.core.engine_output import TokenLogprob
from chairlift.model.sampling.sampling_ops import SamplingOps

Int64 = NDArray[np.int64]


def token_logprobs(raw: Tensor, tokens: Int64, counts: Int64, sampling_ops: SamplingOps) -> list[TokenLogprob]:
    """Return logprobs of chosen and of the most likely tokens, from raw logits, summed in float64.

    Args:
        raw: [N, V] float32 or float64, the largest of each row finite.
        tokens: int64 [N], chosen.
        counts: int64 [N], number of most likely tokens; among equal logits the lower id comes first.
        sampling_ops: operations over the rows.
    """
    max_logits = raw.amax(-1, keepdim=True)
    max_logit, log_sum = max_logits.double(), sampling_ops.logsumexp(raw, max_logits)
    chosen = raw.gather(1, torch.from_numpy(tokens).to(raw.device)[:, None]).double() - max_logit - log_sum
    values, ids = sampling_ops.top_k_tokens(raw, int(counts.max()))
    top_values, top_ids = (values.double() - max_logit - log_sum).tolist(), ids.tolist()
    return [
        TokenLogprob(token, logprob, tuple(zip(top_ids[row][:count], top_values[row][:count], strict=True)))
        for row, (token, logprob, count) in enumerate(
            zip(tokens.tolist(), chosen[:, 0].tolist(), counts.tolist(), strict=True)
        )
    ]
