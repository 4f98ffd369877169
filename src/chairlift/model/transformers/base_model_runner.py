"""BaseModelRunner: one way to run a base model of transformers over the paged KV cache."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

from torch import Tensor, nn

from chairlift.model.config.layer_groups import LayerGroups
from chairlift.model.layers.causal_lm_protocol import ForwardContext


class BaseModelRunner(Protocol):
    """Runs all layers of one model.

    Attributes:
        groups: layer groups that share the pool.
        windows: by layer, its window; None for attention to all tokens.
        num_kv_heads: key/value heads of every layer.
        head_dim: width of a head in the KV cache, that of the widest of keys and values.
        state_width: width of the hidden states, which the head reads.
        report: says how the layers run, for the startup report.
    """

    groups: LayerGroups
    windows: tuple[int | None, ...]
    num_kv_heads: int
    head_dim: int
    state_width: int
    report: str

    def run(self, base: nn.Module, input_ids: Tensor, context: ForwardContext) -> Tensor:
        """Run input_ids [T] int64 at context.batch.positions through all layers; returns normed states [T, H]."""
        ...


def base_states(base: nn.Module, input_ids: Tensor, positions: Tensor, **options: Any) -> Tensor:
    """Return the hidden states [T, H] of tokens at positions, both int64 [T]."""
    if takes_positions(base):
        options["position_ids"] = positions[None]
    output = base(input_ids=input_ids[None], return_dict=True, **options)
    states: Tensor = output.last_hidden_state[0]
    return states


def takes_positions(base: nn.Module) -> bool:
    """Return whether a base model's forward has `position_ids`."""
    return _has_position_ids(type(base).forward)


@cache
def _has_position_ids(forward: Callable[..., Any]) -> bool:
    return "position_ids" in inspect.signature(forward).parameters
