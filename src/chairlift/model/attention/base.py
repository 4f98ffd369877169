"""AttentionBackend: the protocol of attention over the paged KV cache; AttentionSpec and PagedKV: its inputs."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from chairlift.model.batch.forward_batch import ForwardBatch
from chairlift.model.device.kv_dtype import as_elements


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Parameters of one layer's attention.

    Attributes:
        group: index of its layer group.
        scale: factor on q·k.
        window: a token sees itself and the window - 1 tokens before it; None for all.
        softcap: logits become softcap * tanh(logits / softcap); None for no cap.
        sinks: [query heads], logits of a virtual key without a value; None for none.
    """

    group: int
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None


@dataclass(frozen=True, slots=True)
class PagedKV:
    """Paged keys and values of one layer index, shared by the layers with that index in all groups.

    Attributes:
        key: [num_blocks, block_size, kv_heads, head_dim].
        value: the same shape.
        pages: the whole pages that these are a part of; None where they are whole.
    """

    key: Tensor
    value: Tensor
    pages: "PagedKV | None" = None


def whole_pages(kv: list[PagedKV]) -> list[PagedKV]:
    """Return the whole pages that parts belong to, each once, and what is whole."""
    found = [each if each.pages is None else each.pages for each in kv]
    return list({id(each): each for each in found}.values())


def copy_blocks(kv: list[PagedKV], pairs: Tensor) -> None:
    """Copy whole blocks in torch, as they were before the call: pairs int [C, 2] of (from, to)."""
    source, target = pairs.long().unbind(1)
    for layer in whole_pages(kv):
        for cache in (as_elements(layer.key), as_elements(layer.value)):
            # Gathered before anything is written: a target may be the source of another pair.
            cache.index_copy_(0, target, cache.index_select(0, source))


class AttentionBackend(Protocol):
    """Writes and reads the paged KV cache. Results match the reference within the dtype's error bound.

    Attributes:
        has_plain_kv: whether kv.key[block, offset] and kv.value[block, offset] are the heads of a token as written,
            in tensors of equal strides whose last is 1. A layer may then write them itself instead of by write_kv.
        supports_cuda_graph: whether attend and write_kv read tensors of the batch on the device only, never its lists.
    """

    has_plain_kv: bool
    supports_cuda_graph: bool

    def allocate_kv_cache(
        self, layers: int, num_blocks: int, block_size: int, kv_heads: int, head_dim: int,
        dtype: torch.dtype, device: torch.device,
    ) -> list[PagedKV]:  # fmt: skip
        """Allocate one PagedKV for each layer index of a group; all groups have the same number of layers.

        `dtype` is that of queries, keys and values, or float8_e4m3fn (kv_dtype.py) for any of these.
        """
        ...

    def plan(self, batch: ForwardBatch) -> Any:
        """Prepare the data that all layers of a step share; called once per step."""
        ...

    def write_kv(self, key: Tensor, value: Tensor, kv: PagedKV, slot_mapping: Tensor) -> None:
        """Store key and value [T, kv_heads, head_dim] at slot_mapping [T]; -1 is skipped.

        Numbers that the cache cannot hold are stored as as_stored (kv_dtype.py) returns them.
        """
        ...

    def copy_blocks(self, kv: list[PagedKV], pairs: Tensor) -> None:
        """Copy whole blocks in every PagedKV: pairs int [C, 2] of (from, to)."""
        ...

    def attend(
        self, query: Tensor, kv: PagedKV, batch: ForwardBatch, spec: AttentionSpec, plan: Any, out: Tensor
    ) -> None:
        """Attend query [T, heads, head_dim] to the cache, causally, into out (same shape)."""
        ...
