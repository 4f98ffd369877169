"""ModelDefaults: what a model's own files set where a request says nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

DEFAULT_POOLING = "last"
"""Pooling of a model whose folder names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDefaults:
    """Default parameters of a request.

    Attributes:
        eos_token_ids: token ids that end an output.
        sampling: temperature, top_k, top_p, min_p, repetition_penalty where the model folder names them.
        max_tokens: None for as many as fit.
        pooling: one of POOLING_TYPES, how embeddings are made.
    """

    eos_token_ids: tuple[int, ...] = ()
    sampling: Mapping[str, float | int] = field(default_factory=dict)
    max_tokens: int | None = None
    pooling: str = DEFAULT_POOLING
