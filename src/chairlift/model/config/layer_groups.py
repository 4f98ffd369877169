"""LayerGroups: the layers of a model in groups that share one pool of KV cache blocks. Imports no torch.

AttentionShape: the heads of a layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The key heads, as many value heads, and their width, which a layer with attention has or reads."""

    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class LayerGroups:
    """The layers by kind of attention, in groups of equal size (the last of a kind may be padded).

    Attributes:
        windows: one entry per group, None for full attention.
        layers_per_group: layers whose KV one block holds.
        places: for each layer (group, index within the group); a layer without keys and values of its own has the place
            of the layer whose keys and values it reads.
    """

    windows: tuple[int | None, ...]
    layers_per_group: int
    places: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, layer_windows: Sequence[int | None], kv_sources: Sequence[int | None] = ()) -> "LayerGroups":
        """Group layers with equal windows; the rarest kind sets the size of all groups.

        Args:
            layer_windows: ModelConfig.layer_windows.
            kv_sources: ModelConfig.kv_sources.
        """
        sources = tuple(kv_sources) or (None,) * len(layer_windows)
        kinds: dict[int | None, list[int]] = {}
        for layer, (window, source) in enumerate(zip(layer_windows, sources, strict=True)):
            if source is None:
                kinds.setdefault(window, []).append(layer)
            else:
                assert layer_windows[source] == window, "a layer reads keys of another window"
        size = min(len(layers) for layers in kinds.values())
        windows: list[int | None] = []
        places: dict[int, tuple[int, int]] = {}
        for window, layers in kinds.items():
            for start in range(0, len(layers), size):
                for index, layer in enumerate(layers[start : start + size]):
                    places[layer] = (len(windows), index)
                windows.append(window)
        owners = (layer if source is None else source for layer, source in enumerate(sources))
        return cls(tuple(windows), size, tuple(places[owner] for owner in owners))
