"""CausalLM: what a family gives the runner, and how its layers fall into groups that share one pool of blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from chairlift.engine.step_plan import StepPlan
from chairlift.model.attention.base import KV, AttentionBackend, ForwardBatch
from chairlift.model.runner.input_batch import SlotTables
from chairlift.model.sampling.lm_head_output import Scored, Wanted


@dataclass(frozen=True, slots=True)
class LayerGroups:
    """Layers by kind of attention, in groups of equal size (the last of a kind may be padded).

    Attributes:
        windows: one entry a group, None for full attention.
        layers_per_group: how many KV a page needs.
        places: for each layer (group, index within the group).
    """

    windows: tuple[int | None, ...]
    layers_per_group: int
    places: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, layer_windows: Sequence[int | None]) -> "LayerGroups":
        """Group layers whose window is equal; the rarest kind sets the size of all groups."""
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


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """What every layer of one forward pass shares: the step's sequences, the cache and who attends to it."""

    batch: ForwardBatch
    kv: list[KV]
    backend: AttentionBackend
    plan: Any


@runtime_checkable
class TakesPlans(Protocol):
    """A CausalLM that makes a step's inputs of its plan by itself."""

    def forward_plan(self, plan: StepPlan, tables: SlotTables, kv: list[KV]) -> Tensor:
        """Run a plan whose news the tables have taken over through all layers; returns hidden states [T, H].

        They are good until the next call. Raises MemoryError, and TokenOutOfRange for an input id that the vocabulary
        does not have.
        """
        ...

    def score_plan(self, plan: StepPlan, tables: SlotTables, kv: list[KV], wanted: Wanted) -> Scored:
        """Run it and say what is wanted of its sample rows, in one call; good until the next, and raises likewise."""
        ...


class CausalLM(Protocol):
    """A decoder that turns the tokens of a step into logits of the rows that want them.

    Attributes:
        groups: how its layers share the pool.
        vocab_size: V.
        num_kv_heads: of every layer.
        head_dim: of every layer.
    """

    groups: LayerGroups
    vocab_size: int
    num_kv_heads: int
    head_dim: int

    def padded(self, num_tokens: int) -> int:
        """Return how many tokens, at least so many, a step should have; what is beyond is padding."""
        ...

    def forward(self, input_ids: Tensor, context: ForwardContext) -> Tensor:
        """Run input_ids [T] int64 at context.batch.positions through all layers; returns hidden states [T, H]."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Turn hidden states [R, H] into logits [R, V] of the same dtype or a wider one."""
        ...

    def head(self, hidden: Tensor, wanted: Wanted) -> Scored:
        """Say of R hidden states [R, H] what is wanted of their logits; good until the next call."""
        ...
