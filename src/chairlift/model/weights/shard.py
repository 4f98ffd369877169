"""Shard: the part of a model that one rank of several computes. Imports no torch.

query, key, value, gate, up    rows of the weight and of the bias      each rank has its own heads and neurons
o_proj, down_proj              columns of the weight                   the ranks' outputs are added up
                               the bias                                on rank 0 only, so that it is added once
embedding, lm_head             rows of the vocabulary                  padded with zeros to equal sizes
norms                          whole
"""

from dataclasses import dataclass, replace

from chairlift.core.errors import ConfigError
from chairlift.model.config.decoder_config import PROJECTION, DecoderConfig
from chairlift.model.config.layer_groups import AttentionShape
from chairlift.model.config.model_config import ModelConfig

Part = tuple[slice, ...]
"""For each axis of a tensor the elements of one rank."""

_ROW_PARALLEL = ("o_proj", "down_proj")
_VOCABULARY = ("embed_tokens", "lm_head")


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's part of a model.

    Attributes:
        rank: number of the part, from 0.
        num_ranks: number of parts.
    """

    rank: int
    num_ranks: int

    def config(self, model: DecoderConfig) -> DecoderConfig:
        """Return the sizes of this part of a model; equal for all ranks. The model must pass check_shards."""
        return replace(
            model,
            num_heads=model.num_heads // self.num_ranks,
            num_kv_heads=self._own_heads(model.num_kv_heads),
            layer_shapes=tuple(
                AttentionShape(self._own_heads(shape.num_kv_heads), shape.head_dim) for shape in model.layer_shapes
            ),
            intermediate_size=model.intermediate_size // self.num_ranks,
            experts=None if model.experts is None else model.experts.of_ranks(self.num_ranks),
            vocab_size=-(-model.vocab_size // self.num_ranks),
        )

    def _own_heads(self, num_kv_heads: int) -> int:
        """Return the key/value heads of each rank; several ranks may have the same one."""
        return max(1, num_kv_heads // self.num_ranks)

    def step_sizes(self, model: DecoderConfig) -> DecoderConfig:
        """Return the sizes that a step of this part has: as config(), but with the logits of the whole vocabulary."""
        return replace(self.config(model), vocab_size=model.vocab_size)

    def part(self, name: str, whole: tuple[int, ...], own: tuple[int, ...]) -> Part:
        """Return which elements of a parameter this rank reads; zeros follow where they are fewer than its own.

        Args:
            name: canonical name of the parameter.
            whole: its shape in the checkpoint.
            own: its shape in this rank.
        """
        module, kind = name.split(".")[-2:]
        if module in _ROW_PARALLEL and kind == "bias" and self.rank > 0:
            return (slice(0, 0),)
        return tuple(
            slice(0, size) if size == count else self._range(size, count, module in _VOCABULARY)
            for size, count in zip(whole, own, strict=True)
        )

    def _range(self, size: int, count: int, is_padded: bool) -> slice:
        if is_padded:
            return slice(min(self.rank * count, size), min((self.rank + 1) * count, size))
        start = self.rank * size // self.num_ranks // count * count  # several ranks may share a key/value head
        return slice(start, start + count)


def check_shards(model: ModelConfig, num_ranks: int) -> None:
    """Raise ConfigError unless `num_ranks` ranks can compute a model together."""
    if num_ranks == 1:
        return
    if not isinstance(model, DecoderConfig):
        raise ConfigError(
            f"tensor_parallel_size is {num_ranks}, but {model.architecture} is computed by transformers' modules, "
            "which run on one rank; set tensor_parallel_size to 1", option="tensor_parallel_size",
        )  # fmt: skip
    if model.state_shapes:
        raise ConfigError(
            f"tensor_parallel_size is {num_ranks}, but {model.architecture} has layers that keep a state, which run on "
            "one rank; set tensor_parallel_size to 1", option="tensor_parallel_size",
        )  # fmt: skip
    if model.has_layer_scalar:
        raise ConfigError(
            f"tensor_parallel_size is {num_ranks}, but {model.architecture} has scalars and inputs of layers, which "
            "run on one rank; set tensor_parallel_size to 1", option="tensor_parallel_size",
        )  # fmt: skip
    if model.experts is not None:
        model.experts.of_ranks(num_ranks)
    if model.head_norm == PROJECTION:
        raise ConfigError(
            f"tensor_parallel_size is {num_ranks}, but {model.architecture} normalises all query heads together; "
            "set tensor_parallel_size to 1", option="tensor_parallel_size",
        )  # fmt: skip
    for count, what in ((model.num_heads, "query heads"), (model.intermediate_size, "neurons of the MLP")):
        if count % num_ranks:
            raise _uneven(num_ranks, count, what)
    for heads in {shape.num_kv_heads: None for shape in model.attention_shapes}:
        if heads % num_ranks and num_ranks % heads:
            raise _uneven(num_ranks, heads, "key/value heads")


def _uneven(num_ranks: int, count: int, what: str) -> ConfigError:
    return ConfigError(
        f"tensor_parallel_size is {num_ranks}, but the model's {count} {what} cannot be shared evenly; "
        "set it to a number that divides them", option="tensor_parallel_size",
    )  # fmt: skip
