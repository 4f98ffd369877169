"""LayerGroups: the layers of a model in groups that share one pool of KV cache blocks. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerGroups:
    """The layers by kind of attention, in groups of equal size (the last of a kind may be padded).

    Attributes:
        windows: one entry per group, None for full attention.
        layers_per_group: layers whose KV one block holds.
        places: for each layer (group, index within the group).
    """

    windows: tuple[int | None, ...]
    layers_per_group: int
    places: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, layer_windows: Sequence[int | None]) -> "LayerGroups":
        """Group layers with equal windows; the rarest kind sets the size of all groups."""
        kinds: dict[int | None, list[int]] = {}
        for layer, window in enumerate(layer_windows):
            kinds.setdefault(window, []).append(layer)
        size = min(len(layers) for layers in kinds.values())
        windows: list[int | None] = []
        places: dict[int, tuple[int, int]] = {}
        for window, layers in kinds.items():
            for start in range(0, len(layers), size):
                for index, layer in enumerate(layers[start : start + size]):
                    places[layer] = (len(windows), index)
                windows.append(window)
        return cls(tuple(windows), size, tuple(places[layer] for layer in range(len(layer_windows))))
