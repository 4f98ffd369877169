"""ActivationShape, memory_shapes: estimate the memory of a step from the model's config and the options.

memory_shapes derives the sizes of a block and of a step before the model is loaded.
"""

from dataclasses import dataclass

from chairlift.engine.step_plan import MIN_STEP_SAMPLES
from chairlift.model.attention.torch_paged import GATHER_BYTES, MAX_CACHED_INDICES, MAX_QUERIES
from chairlift.model.batch.kv_cache_shape import KVCacheShape, kv_cache_shape
from chairlift.model.config.layer_groups import LayerGroups
from chairlift.model.config.model_config import ModelConfig
from chairlift.model.config.runner_config import RunnerConfig
from chairlift.model.device.dtypes import dtype_bytes
from chairlift.model.sampling.truncated_sampling import CHUNK_ELEMENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationShape:
    """Sizes, in elements, of the largest step of a model; itemsize in bytes is that of its dtype.

    Attributes:
        attention_width: elements of a token in the widest attention: query and output, key and value.
        kv_width: elements of a key in the widest layer.
        windows: each kind of attention once or more: a window in tokens, None for full attention.
        inputs_width: numbers of a token as inputs of all layers beside the hidden state.
    """

    hidden_size: int
    intermediate_size: int
    attention_width: int
    kv_width: int
    vocab_size: int
    itemsize: int
    max_batch_tokens: int
    max_running_requests: int
    max_model_len: int
    windows: tuple[int | None, ...] = (None,)
    inputs_width: int = 0

    @property
    def source(self) -> str:
        """How the number of bytes is found, for people."""
        return "estimated from above"

    def peak_bytes(self) -> int:
        """Return an upper estimate of the bytes that a step needs besides weights and cache."""
        widest = max(3 * self.intermediate_size, 3 * self.attention_width)
        # Residual, its normed copy and the norm's float32 tensors, beside the widest part of a layer.
        activations = self.max_batch_tokens * (self.itemsize * (3 * self.hidden_size + widest) + 8 * self.hidden_size)
        # Inputs of all layers: rows of a table, the same times a factor, a projection, and a norm in float32.
        activations += self.max_batch_tokens * self.inputs_width * (4 * self.itemsize + 8)
        # Backend "torch": a workspace for decoding rows or the longest sequence, and where in the cache their tokens
        # are. Backend "reference": the longest sequence is gathered twice over.
        gathered = max(2 * GATHER_BYTES, 4 * self.max_model_len * self.kv_width * self.itemsize)
        indices = MAX_CACHED_INDICES * (8 + self.itemsize)
        # One mask per kind is kept, in the model's dtype. Building one needs two in bool, and using one on a GPU needs
        # a copy of a part of it.
        queries, longest = min(self.max_batch_tokens, self.max_model_len, MAX_QUERIES), self.max_model_len
        mask_widths = [queries + (longest if window is None else min(longest, window)) for window in {*self.windows}]
        masks = queries * (self.itemsize * (sum(mask_widths) + max(mask_widths)) + 2 * max(mask_widths))
        # Drafts are sampled after, too; see DraftPlanner.
        samples = max(self.max_running_requests, min(MIN_STEP_SAMPLES, self.max_batch_tokens))
        rows = samples * self.vocab_size
        # Raw logits, the same in the sampling dtype, and a copy of some of these rows.
        logits = rows * (self.itemsize + 2 * (8 if self.itemsize > 4 else 4))
        # Distribution, running sums and order of one chunk of rows, in float64 and int64, with a sort's workspace.
        sampling = min(rows, max(CHUNK_ELEMENTS, self.vocab_size)) * 8 * 12
        return activations + gathered + indices + masks + logits + sampling


def memory_shapes(
    config: RunnerConfig, model: ModelConfig, groups: LayerGroups, max_model_len: int
) -> tuple[KVCacheShape, ActivationShape]:
    """Return the shapes that decide the size of the cache and of the largest step; `model` has the dtype as loaded."""
    itemsize = dtype_bytes(model.dtype)
    pool = kv_cache_shape(config, model, groups, max_model_len)
    step = ActivationShape(
        hidden_size=model.hidden_size,
        intermediate_size=model.mlp_width,
        attention_width=max(2 * (model.num_heads * shape.head_dim + shape.width) for shape in model.attention_shapes),
        kv_width=max(shape.width for shape in model.attention_shapes),
        vocab_size=model.vocab_size,
        itemsize=itemsize,
        max_batch_tokens=config.max_batch_tokens,
        max_running_requests=config.max_running_requests,
        max_model_len=max_model_len,
        windows=groups.windows,
        inputs_width=model.inputs_width,
    )
    return pool, step
