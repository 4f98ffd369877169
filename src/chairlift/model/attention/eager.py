"""eager_attention: attention with a soft cap or sinks, which SDPA lacks."""

import torch
from torch import Tensor

from chairlift.model.attention.base import AttentionSpec


def eager_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, spec: AttentionSpec) -> Tensor:
    """Compute attention of query [..., kv_heads, shared, Q, D] and key, value [..., kv_heads, 1 or shared, N, D].

    Args:
        query: grouped by KV head; `shared` query heads use the same KV head.
        key, value: any dtype; 16-bit inputs are computed in float32 and rounded once.
        mask: added to the scores after the soft cap (0 or -inf), broadcast to [..., kv_heads, shared, Q, N]; None for
            none.
        spec: scale, soft cap and sinks.

    Returns the shape and dtype of query.
    """
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = query.to(wide) @ key.to(wide).transpose(-1, -2) * spec.scale
    if spec.softcap is not None:
        scores = torch.tanh(scores / spec.softcap) * spec.softcap
    if mask is not None:
        scores = scores + mask
    if spec.sinks is not None:
        kv_heads, shared = query.shape[-4:-2]
        sinks = spec.sinks.to(wide).view(kv_heads, shared, 1, 1).expand(*scores.shape[:-1], 1)
        # The sink takes its share of the softmax and has no value, so its column is dropped.
        weights = torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    return (weights @ value.to(wide)).to(query.dtype)
