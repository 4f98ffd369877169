"""The network: a small Llama with grouped-query attention, and its optimizers."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from demo_model.tokenizer_training import SIZE
from demo_model.tokenizing_and_packing import Rows

CONTEXT = 2048
"""The model's context length, and the length of the longest rows."""


def make_network(seed: int, end: int, padding: int) -> LlamaForCausalLM:
    """Make the network with random weights."""
    torch.manual_seed(seed)
    shape = dict[str, Any](
        vocab_size=SIZE, hidden_size=256, intermediate_size=640, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=CONTEXT, rope_theta=10_000.0, rms_norm_eps=1e-5,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=end, pad_token_id=padding, attn_implementation="sdpa",
        initializer_range=0.02,
    )  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**shape))


def loss_of(network: Any, rows: Rows, body: Any = None) -> tuple[Tensor, int]:
    """Return the summed cross-entropy of the learnt tokens, and their number.

    `body` replaces the network's layers with a faster version of them.
    """
    ids, parts, positions = (torch.from_numpy(array) for array in (rows.input_ids, rows.parts, rows.positions))
    length = ids.shape[1]
    earlier = torch.ones(length, length, dtype=torch.bool).tril()
    mask = (parts[:, None, :, None] == parts[:, None, None, :]) & earlier
    body = network.model if body is None else body
    hidden = body(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).last_hidden_state
    wanted = torch.from_numpy(rows.is_learnt)[:, 1:]
    logits = functional.linear(hidden[:, :-1][wanted], network.lm_head.weight)
    return functional.cross_entropy(logits.float(), ids[:, 1:][wanted], reduction="sum"), int(wanted.sum())


class Optimizers:
    """Muon for the matrices of the layers, AdamW for everything else; one schedule for both."""

    def __init__(self, network: nn.Module, matrix_rate: float, other_rate: float) -> None:
        layers = [
            parameter for name, parameter in network.named_parameters() if "layers." in name and parameter.ndim == 2
        ]
        known = {id(parameter) for parameter in layers}
        others = [parameter for parameter in network.parameters() if id(parameter) not in known]
        self._all = (
            torch.optim.Muon(layers, lr=matrix_rate, momentum=0.95, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=other_rate, betas=(0.9, 0.95), weight_decay=0.0),
        )
        self._rates = (matrix_rate, other_rate)

    def step(self, share: float) -> None:
        """Update the parameters with the learning rates times `share`, and clear the gradients."""
        for optimizer, rate in zip(self._all, self._rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * share
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, Any]]:
        """Return the state for a checkpoint."""
        return [optimizer.state_dict() for optimizer in self._all]

    def load(self, states: list[dict[str, Any]]) -> None:
        """Restore the state of a checkpoint."""
        for optimizer, state in zip(self._all, states, strict=True):
            optimizer.load_state_dict(state)
