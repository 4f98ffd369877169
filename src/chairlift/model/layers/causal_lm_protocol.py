"""CausalLM: the model's interface to the runner."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from chairlift.engine.step_plan import StepPlan
from chairlift.model.attention.base import AttentionBackend, PagedKV
from chairlift.model.batch.forward_batch import ForwardBatch
from chairlift.model.batch.input_batch import SlotBlockTables
from chairlift.model.batch.state_cache import StateCache
from chairlift.model.batch.state_step import StateStep
from chairlift.model.config.layer_groups import LayerGroups
from chairlift.model.config.state_layers import StateShape
from chairlift.model.lora.adapter_weights import AdapterWeights
from chairlift.model.lora.row_adapters import Int32
from chairlift.model.sampling.lm_head_output import LMHeadOutput, LogitsRequest


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """The values that all layers of a forward pass share: the step's sequences, the cache, the attention backend.

    Attributes:
        states: states of the layers that have them; None for a model without such layers.
        state_step: rows of the step as these layers need them.
    """

    batch: ForwardBatch
    kv: list[PagedKV]
    backend: AttentionBackend
    plan: Any
    states: StateCache | None = None
    state_step: StateStep | None = None


@runtime_checkable
class TakesPlans(Protocol):
    """A CausalLM that builds a step's inputs from its plan by itself."""

    def forward_plan(
        self, plan: StepPlan, tables: SlotBlockTables, kv: list[PagedKV], states: StateCache | None = None
    ) -> Tensor:
        """Run a plan that was applied to the tables through all layers; returns hidden states [T, H].

        `states` are those of a model that has some; the plan's loads were copied. The hidden states are valid until the
        next call. Raises MemoryError, and TokenOutOfRange for an input id outside the vocabulary.
        """
        ...

    def score_plan(
        self,
        plan: StepPlan,
        tables: SlotBlockTables,
        kv: list[PagedKV],
        request: LogitsRequest,
        states: StateCache | None = None,
    ) -> LMHeadOutput:
        """Run a plan and return the requested output of its sample rows, valid until the next call.

        Raises as forward_plan does.
        """
        ...


@runtime_checkable
class TakesAdapters(Protocol):
    """A CausalLM each of whose rows may have a LoRA adapter of its own.

    A row's output depends on its own adapter alone, and that of a row without one is the model's, with the same bits.

    Attributes:
        adaptable: canonical name of each projection that an adapter may change, the lm_head included -> O and I.
    """

    adaptable: Mapping[str, tuple[int, int]]

    def add_adapter(self, number: int, weights: AdapterWeights) -> int:
        """Add the adapter of a number, at least 1, that no other one has; steps may run meanwhile.

        The weights must be for all the model's parameters that they name. Returns the bytes that the model keeps of
        them, in its own dtypes. Raises MemoryError.
        """
        ...

    def remove_adapter(self, number: int) -> None:
        """Forget an adapter that no later row has."""
        ...

    def use_adapters(self, numbers: Int32 | None) -> None:
        """Name the adapter of each row of the next calls, int32 [rows], 0 for none; None for none in any row.

        Rows are those of input ids in forward(), and those of hidden states in logits() and head(). Raises RuntimeError
        for a number without an adapter.
        """
        ...


class CausalLM(Protocol):
    """A decoder that computes hidden states of a step's tokens and logits of its sample rows.

    Attributes:
        groups: layer groups that share the pool.
        vocab_size: V.
        state_shapes: shapes of one sequence's states, of each layer that keeps a state.
    """

    groups: LayerGroups
    vocab_size: int
    state_shapes: tuple[StateShape, ...]

    def padded_size(self, num_tokens: int) -> int:
        """Return the padded number of tokens, at least num_tokens, that a step should have."""
        ...

    def forward(self, input_ids: Tensor, context: ForwardContext) -> Tensor:
        """Run input_ids [T] int64 at context.batch.positions through all layers; returns hidden states [T, H]."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits [R, V] of the same dtype or a wider one from hidden states [R, H]."""
        ...

    def head(self, hidden: Tensor, request: LogitsRequest) -> LMHeadOutput:
        """Compute the requested lm_head output of hidden states [R, H]; valid until the next call."""
        ...
