"""allocate_kv: allocates the KV cache of layer groups, whose layers may have heads of several shapes.

Layers of one shape have a PagedKV for each index within a group. Where there are several shapes, a block is a page
whose parts all layers of a group have (LayerGroups), so that groups of every shape take blocks of one pool:

    plain      pages [num_blocks, block_size, 1, page_width]; a layer has some elements of each token
    native     pages of as many elements; a layer has its elements of all tokens together
"""

from typing import Protocol, runtime_checkable

import torch

from chairlift.model.attention.base import AttentionBackend, PagedKV, whole_pages
from chairlift.model.config.layer_groups import CachePlace, LayerGroups


@runtime_checkable
class SharesPages(Protocol):
    """An AttentionBackend whose PagedKV may be a part of a page."""

    def part_of_pages(self, pages: PagedKV, place: CachePlace) -> PagedKV:
        """Return the keys and values of one layer; `pages` were allocated with one head of page_width."""
        ...


def allocate_kv(
    backend: AttentionBackend, groups: LayerGroups, num_blocks: int, block_size: int, dtype: torch.dtype,
    device: torch.device,
) -> list[PagedKV]:  # fmt: skip
    """Allocate a PagedKV for each of groups.caches. Raises ConfigError for a dtype or shape that the backend lacks."""
    if not groups.has_several_shapes:
        shape = groups.caches[0].shape
        return backend.allocate_kv_cache(
            len(groups.caches), num_blocks, block_size, shape.num_kv_heads, shape.head_dim, dtype, device
        )
    assert isinstance(backend, SharesPages), "check_cache_shapes refuses other backends"
    (pages,) = backend.allocate_kv_cache(1, num_blocks, block_size, 1, groups.page_width, dtype, device)
    return [backend.part_of_pages(pages, place) for place in groups.caches]


def slots_part(pages: PagedKV, place: CachePlace) -> PagedKV:
    """Return part_of_pages of a backend with has_plain_kv: some elements of each slot."""
    shape = place.shape
    key, value = (
        # The strides of the pages are those of the part also where an axis has one element.
        each.as_strided(
            (*each.shape[:2], shape.num_kv_heads, shape.head_dim), (*each.stride()[:2], shape.head_dim, 1),
            each.storage_offset() + place.first_element,
        )
        for each in (pages.key, pages.value)
    )  # fmt: skip
    return PagedKV(key, value, pages)


def kv_bytes(kv: list[PagedKV]) -> int:
    """Return the bytes of a KV cache."""
    return sum(each.key.nbytes + each.value.nbytes for each in whole_pages(kv))
