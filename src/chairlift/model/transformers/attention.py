"""PagedAttention: transformers' attention interface over the paged KV cache; the attention function that it calls.

    module.forward → query, key, value [1, heads, T, D] → paged_attention → write_kv, attend → [1, T, heads, D]

transformers calls the function with a module and its options. The module's PagedAttention, an attribute of it, knows
the step. Source: transformers 5.23 integrations/sdpa_attention.py, masking_utils.py.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from chairlift.model.attention.base import AttentionSpec
from chairlift.model.config.layer_groups import AttentionShape, LayerGroups
from chairlift.model.layers.causal_lm_protocol import ForwardContext
from chairlift.model.transformers.base_model_runner import base_states
from chairlift.model.transformers.unsupported_layers import not_causal, unsupported

IMPLEMENTATION = "chairlift"
"""Name of the attention in transformers' interface."""
MEASURING = "chairlift_measuring"
"""Name of the attention that records the calls of a pass instead of computing."""

ATTRIBUTE = "chairlift_paged_attention"
"""Attribute of a module that holds its model's PagedAttention."""

FULL, OTHER, LATER = 0, -1, -2
"""Codes in the masks of a measuring pass: all earlier tokens, another pattern of them, and later tokens, too."""

FAR = 1 << 22
"""Position in a mask that is behind every sliding window."""


@dataclass(frozen=True, slots=True)
class LayerCall:
    """What one layer asks of its attention.

    Attributes:
        head_dim: width of a query and a key.
        value_dim: width of a value.
        spec: its parameters; the group is not known yet.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    spec: AttentionSpec


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """Where a layer's keys and values are, and the parameters of its attention."""

    kv_index: int
    spec: AttentionSpec


class PagedAttention:
    """The attention of all layers of one model.

    Attributes:
        calls: by layer, the calls of the measuring pass.
        context: the step that runs; None between steps.
        groups: layer groups, set by assign_places.
        windows: by layer, its window; None for attention to all tokens.
        head_dim: width of a head in the KV cache, that of the widest of keys and values.
        num_kv_heads: key/value heads of every layer.
        state_width: width of the hidden states, set by the measuring pass.
    """

    report = "on the paged attention"

    def __init__(self) -> None:
        self.calls: dict[int, list[LayerCall]] = {}
        self.context: ForwardContext | None = None
        self.groups = LayerGroups((), 0, (), ())
        self.windows: tuple[int | None, ...] = ()
        self.head_dim = 0
        self.num_kv_heads = 0
        self.state_width = 0
        self._places: tuple[LayerPlace, ...] = ()
        self._inputs: list[Tensor] | None = None

    def attach(self, model: nn.Module) -> None:
        """Make this the attention of every module of the model that has a layer index."""
        for module in model.modules():
            if hasattr(module, "layer_idx"):
                setattr(module, ATTRIBUTE, self)

    def record(self, layer: int, call: LayerCall, inputs: tuple[Tensor, ...]) -> None:
        """Record a call of a measuring pass with its query, key and value, or the inputs alone inside recording()."""
        if self._inputs is None:
            self.calls.setdefault(layer, []).append(call)
        else:
            self._inputs.extend(inputs)

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[Tensor]]:
        """Collect the queries, keys and values of measuring passes in a list, instead of their calls."""
        self._inputs = []
        try:
            yield self._inputs
        finally:
            self._inputs = None

    def assign_places(self, num_layers: int) -> None:
        """Decide from the calls of the measuring pass where each layer's keys and values are.

        Raises UnsupportedArchitecture, with the reason, for layers that a paged KV cache cannot hold.
        """
        calls = self._one_call_per_layer(num_layers)
        shapes = {(call.num_kv_heads, call.head_dim, call.value_dim) for call in calls}
        if len(shapes) > 1:
            raise unsupported("its layers have different numbers or widths of key/value heads")
        ((self.num_kv_heads, key_dim, value_dim),) = shapes
        self.head_dim = max(key_dim, value_dim)
        if any(call.spec.window == LATER for call in calls):
            raise not_causal()
        if any(call.spec.window == OTHER for call in calls):
            raise unsupported("the mask of a layer is neither causal over all tokens nor a sliding window")
        self.windows = tuple(call.spec.window for call in calls)
        self.groups = LayerGroups.of(
            self.windows, (AttentionShape(self.num_kv_heads, self.head_dim),) * num_layers
        )  # fmt: skip
        self._places = tuple(
            LayerPlace(index, AttentionSpec(group, spec.scale, spec.window, spec.softcap, spec.sinks))
            for (group, index), spec in zip(self.groups.places, (call.spec for call in calls), strict=True)
        )

    def _one_call_per_layer(self, num_layers: int) -> list[LayerCall]:
        called = sorted(self.calls)
        if called != list(range(num_layers)):
            missing = len(set(range(num_layers)) - set(called))
            if not missing:
                raise unsupported(f"{len(called)} layers have attention, but config.json has {num_layers} layers")
            raise unsupported(f"{missing} of its {num_layers} layers do not use transformers' attention interface")
        if any(len(calls) > 1 for calls in self.calls.values()):
            raise unsupported("a layer uses its attention several times in one pass")
        return [self.calls[layer][0] for layer in called]

    def run(self, base: nn.Module, input_ids: Tensor, context: ForwardContext) -> Tensor:
        """See BaseModelRunner."""
        self.context = context
        try:
            return base_states(base, input_ids, context.batch.positions, use_cache=False)
        finally:
            self.context = None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Write key [1, kv_heads, T, D] and value [1, kv_heads, T, E] to the cache and attend to it.

        Returns [1, T, heads, E].
        """
        context = self.context
        if context is None:
            raise RuntimeError("this model's attention reads a paged KV cache; run it through Chairlift")
        place, width = self._places[layer], value.shape[-1]
        query, key, value = (_padded(each[0].transpose(0, 1), self.head_dim) for each in (query, key, value))
        kv, backend = context.kv[place.kv_index], context.backend
        backend.write_kv(key, value, kv, context.batch.groups[place.spec.group].slot_mapping)
        attended = query.new_empty(query.shape)
        backend.attend(query, kv, context.batch, place.spec, context.plan, attended)
        return attended[None, ..., :width]


def _padded(heads: Tensor, width: int) -> Tensor:
    """Return heads [T, heads, D], with zeros up to the width, which is that of the widest heads."""
    more = width - heads.shape[-1]
    assert more >= 0, f"heads of {heads.shape[-1]} numbers, the measuring pass had at most {width}"
    return functional.pad(heads, (0, more)) if more else heads


def paged_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **_: Any
) -> tuple[Tensor, None]:
    """Attend to the paged cache: transformers' attention interface. Options were recorded by the measuring pass."""
    return _state_of(module).attend(_layer_of(module), query, key, value), None


def measuring_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, sliding_window: int | None = None, softcap: float | None = None,
    s_aux: Tensor | None = None, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Record the options of a call; returns zeros of the right shape."""
    scale = getattr(module, "scaling", None) if scaling is None else scaling
    spec = AttentionSpec(
        group=0,
        scale=float(query.shape[-1] ** -0.5 if scale is None else scale),
        window=_window(attention_mask, sliding_window),
        softcap=softcap,
        sinks=None if s_aux is None else s_aux.detach(),
    )
    call = LayerCall(query.shape[1], key.shape[1], key.shape[-1], value.shape[-1], spec)
    _state_of(module).record(_layer_of(module), call, (query, key, value))
    heads, tokens = query.shape[1:3]
    return value.new_zeros(1, tokens, heads, value.shape[-1]), None


def _window(mask: Tensor | None, option: int | None) -> int | None:
    """Return the window that a layer's mask has, or its option where it has no mask of measuring_mask."""
    if mask is None or mask.ndim != 4 or mask.dtype != torch.int32:
        return option
    code = int(mask.flatten()[0])
    return None if code == FULL else code


def measuring_mask(
    batch_size: int, q_length: int, kv_length: int, mask_function: Callable[..., Tensor], **_: Any
) -> Tensor:
    """Return, in the place of a mask [B, 1, Q, K], its window as a number, FULL, OTHER or LATER."""
    window = torch.tensor(window_of(mask_function), dtype=torch.int32)
    return window.expand(batch_size, 1, q_length, kv_length)  # without memory for the keys of a long sequence


def window_of(mask_function: Callable[..., Tensor]) -> int:
    """Return the window of a mask function (batch, head, query, key) -> bool, FULL, OTHER or LATER."""

    def sees(query: int, distance: int) -> bool:
        zero = torch.tensor(0)
        return bool(mask_function(zero, zero, torch.tensor(query), torch.tensor(query - distance)))

    try:
        windows = {_window_at(sees, query) for query in (FAR, FAR + 1, FAR + 37)}
    except (IndexError, RuntimeError, TypeError):
        return OTHER
    return windows.pop() if len(windows) == 1 else min(windows & {LATER}, default=OTHER)


def _window_at(sees: Callable[[int, int], bool], query: int) -> int:
    """Return the window at one query position, by bisection."""
    if sees(query, -1):
        return LATER
    if not sees(query, 0):
        return OTHER
    if sees(query, query):
        return FULL
    seen, hidden = 0, query
    while hidden - seen > 1:
        middle = (seen + hidden) // 2
        if sees(query, middle):
            seen = middle
        else:
            hidden = middle
    return hidden


def _state_of(module: nn.Module) -> PagedAttention:
    state = getattr(module, ATTRIBUTE, None)
    if not isinstance(state, PagedAttention):
        raise RuntimeError(f"{type(module).__name__} does not belong to a model that Chairlift loaded")
    return state


def _layer_of(module: nn.Module) -> int:
    layer = getattr(module, "layer_idx", None)
    assert isinstance(layer, int), "a module with a PagedAttention has a layer index"
    return layer


def register() -> None:
    """Register the attention functions in transformers, once or more."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(IMPLEMENTATION, paged_attention)
    AttentionInterface.register(MEASURING, measuring_attention)
    AttentionMaskInterface.register(MEASURING, measuring_mask)


def select_attention(model: nn.Module, name: str) -> None:
    """Make all modules of a model call the attention of this name."""
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "_attn_implementation_internal"):
            config._attn_implementation_internal = name
