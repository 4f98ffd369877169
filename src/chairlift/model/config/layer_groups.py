"""LayerGroups: the layers of a model in groups that share one pool of KV cache blocks. Imports no torch.

A block of the pool is a page: so many elements of keys, and as many of values, of block_size tokens in the layers of
one group. All pages have one size, and the layers of a group have one window and one shape:

    page_width   |--------------- 5120 elements of each token ---------------|
    full         | 1024      | 1024      | 1024      | 1024      | 1024      |   2 heads of 512
    window       | 2048                  | 2048                  |           |   8 heads of 256
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The key heads, as many value heads, and their width, which a layer with attention has or reads."""

    num_kv_heads: int
    head_dim: int

    @property
    def width(self) -> int:
        """Elements of the keys of one token."""
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class CachePlace:
    """Where the pages have the keys and the values of one layer of each group of a shape.

    Attributes:
        shape: heads of the layer.
        first_element: elements of each token before it.
    """

    shape: AttentionShape
    first_element: int

    @property
    def elements(self) -> slice:
        """The elements of each token."""
        return slice(self.first_element, self.first_element + self.shape.width)


@dataclass(frozen=True, slots=True)
class LayerGroups:
    """The layers by kind of attention, in groups of as many layers as a page has room for, the last of a kind of fewer.

    Attributes:
        windows: one entry per group, None for full attention.
        page_width: elements of the keys of one token in a page.
        caches: the parts of a page that layers have. Those of one shape do not overlap; those of several shapes are of
            different groups.
        places: for each layer (group, index in `caches`); a layer without keys and values of its own has the place of
            the layer whose keys and values it reads.
    """

    windows: tuple[int | None, ...]
    page_width: int
    caches: tuple[CachePlace, ...]
    places: tuple[tuple[int, int], ...]

    @property
    def has_several_shapes(self) -> bool:
        """Whether layers have heads of several numbers or widths."""
        return len({place.shape for place in self.caches}) > 1

    @classmethod
    def of(
        cls, layer_windows: Sequence[int | None], layer_shapes: Sequence[AttentionShape],
        kv_sources: Sequence[int | None] = (),
    ) -> "LayerGroups":  # fmt: skip
        """Group layers of equal windows and shapes; the kind with the fewest elements fills its pages.

        Args:
            layer_windows: ModelConfig.layer_windows.
            layer_shapes: the shape of each layer with attention.
            kv_sources: ModelConfig.kv_sources.
        """
        sources = tuple(kv_sources) or (None,) * len(layer_windows)
        kinds: dict[tuple[int | None, AttentionShape], list[int]] = {}
        for layer, (window, shape, source) in enumerate(zip(layer_windows, layer_shapes, sources, strict=True)):
            if source is None:
                kinds.setdefault((window, shape), []).append(layer)
            else:
                read = layer_windows[source], layer_shapes[source]
                assert read == (window, shape), "a layer reads keys of another window or shape"
        widest = max(shape.width for _, shape in kinds)
        page_width = max(widest, min(len(layers) * shape.width for (_, shape), layers in kinds.items()))
        caches = _cache_places(page_width, {kind: len(layers) for kind, layers in kinds.items()})
        windows: list[int | None] = []
        places: dict[int, tuple[int, int]] = {}
        for (window, shape), layers in kinds.items():
            indices = [index for index, place in enumerate(caches) if place.shape == shape]
            for start in range(0, len(layers), len(indices)):
                for index, layer in zip(indices, layers[start : start + len(indices)], strict=False):
                    places[layer] = (len(windows), index)
                windows.append(window)
        owners = (layer if source is None else source for layer, source in enumerate(sources))
        return cls(tuple(windows), page_width, caches, tuple(places[owner] for owner in owners))


def _cache_places(
    page_width: int, kinds: dict[tuple[int | None, AttentionShape], int]
) -> tuple[CachePlace, ...]:  # fmt: skip
    """Return the parts of a page, by shape; no shape has more than its kind with the most layers."""
    most: dict[AttentionShape, int] = {}
    for (_, shape), count in kinds.items():
        most[shape] = max(most.get(shape, 0), count)
    return tuple(
        CachePlace(shape, index * shape.width)
        for shape, count in most.items()
        for index in range(min(count, page_width // shape.width))
    )
