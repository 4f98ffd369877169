"""TransformersCausalLM: a CausalLM (layers/causal_lm_protocol.py) whose layers are transformers' modules."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from chairlift.model.config.state_layers import StateShape
from chairlift.model.layers.causal_lm_protocol import ForwardContext
from chairlift.model.sampling.lm_head_output import LMHeadOutput, LogitsRequest, compute_lm_head_output
from chairlift.model.transformers.base_model_runner import BaseModelRunner
from chairlift.model.transformers.module_kernels import ModuleKernels


class _BaseOutput:
    """What a head reads of its base model's output: the hidden states; everything else is None."""

    def __init__(self, states: Tensor) -> None:
        self.last_hidden_state = states

    def __getattr__(self, name: str) -> None:
        return None

    def __getitem__(self, index: int | slice) -> Any:
        return (self.last_hidden_state,)[index]


class _GivenStates(nn.Module):
    """Stands in for the base model where only the head is to be computed; the states are its `inputs_embeds`."""

    @property
    def decoder(self) -> "_GivenStates":
        """OPT's head calls the decoder in the base model."""
        return self

    def forward(self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None, **_: Any) -> _BaseOutput:
        assert inputs_embeds is not None
        return _BaseOutput(inputs_embeds)


class TransformersCausalLM:
    """A decoder of transformers over the paged KV cache.

    Attributes:
        groups, vocab_size, state_shapes: see CausalLM.
        dtype: dtype of parameters, activations and cache.
        base: the module of the layers.
    """

    def __init__(self, model: Any, runner: BaseModelRunner, kernels: ModuleKernels) -> None:
        """Store a model, what runs its layers, and the kernels of its modules."""
        self._runner = runner
        self._kernels = kernels
        self.base = base_of(model)
        self._head_module = _head_of(model)
        self.groups = runner.groups
        self.state_shapes: tuple[StateShape, ...] = ()
        self.dtype: torch.dtype = model.dtype
        output = model.get_output_embeddings()
        states = torch.zeros(1, runner.state_width, dtype=model.dtype, device=model.device)
        self.vocab_size = int(self._model_logits(states).shape[1])
        softcap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
        reads_states = getattr(output, "in_features", None) == runner.state_width  # else layers lie between
        self._fast_head = (
            kernels.head(output, dict.fromkeys((None, softcap)), self._model_logits) if reads_states else None
        )

    def padded_size(self, num_tokens: int) -> int:
        """Return the padded number of tokens of a step."""
        return self._kernels.padded_size(num_tokens)

    def forward(self, input_ids: Tensor, context: ForwardContext) -> Tensor:
        """Run input_ids [T] int64 at context.batch.positions through all layers; returns normed states [T, H]."""
        return self._runner.run(self.base, input_ids, context)

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits [R, V] from hidden states [R, H], with the scales and caps of the model's own head."""
        return self._model_logits(hidden) if self._fast_head is None else self._fast_head.logits(hidden)

    @torch.inference_mode()
    def _model_logits(self, hidden: Tensor) -> Tensor:
        count = len(hidden)
        if (more := self._kernels.padded_size(count) - count) > 0:
            hidden = nn.functional.pad(hidden, (0, 0, 0, more))
        logits: Tensor = self._head_module(inputs_embeds=hidden[None], use_cache=False, return_dict=True).logits
        return logits[0, :count]

    def head(self, hidden: Tensor, request: LogitsRequest) -> LMHeadOutput:
        """See CausalLM."""
        if self._fast_head is not None:
            return self._fast_head.head(hidden, request)
        return compute_lm_head_output(self.logits(hidden), request)


def _head_of(model: Any) -> nn.Module:
    """Return a copy of the model, without its layers, that computes logits of given hidden states."""
    head: nn.Module = copy.copy(model)
    head._modules = dict(model._modules)
    head._modules[_base_name(model)] = _GivenStates()
    return head


def base_of(model: Any) -> nn.Module:
    """Return the module of the layers, without the head."""
    base: nn.Module = getattr(model, _base_name(model))
    return base


def _base_name(model: Any) -> str:
    name: str = model.base_model_prefix
    if name not in model._modules:
        name = next(name for name, child in model.named_children() if hasattr(child, "config"))
    return name
