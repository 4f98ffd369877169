"""BenchShape: a model with random weights, and the bytes and operations of its steps; BenchSizes: what is measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chairlift.model.config.architectures.config_parsing import parse_decoder_config
from chairlift.model.config.decoder_config import DecoderConfig
from cpu_roofline.model_flops import Shape

BFLOAT16_BYTES = 2

NO_EOS: Mapping[str, Any] = {"eos_token_id": None, "bos_token_id": None, "dtype": "bfloat16"}


@dataclass(frozen=True, slots=True)
class BenchShape:
    """A model.

    Attributes:
        name: for people and for the names of figures.
        config: the content of config.json.
    """

    name: str
    config: Mapping[str, Any]

    @property
    def sizes(self) -> Shape:
        """The sizes that operations and bytes are counted with."""
        return Shape.of(self.config, BFLOAT16_BYTES)

    @property
    def decoder_config(self) -> DecoderConfig:
        """The config as Chairlift's loader reads it."""
        return parse_decoder_config(self.config)

    @property
    def step_weights(self) -> int:
        """Weights that every step reads: the matrices of the layers and the lm_head."""
        return self.sizes.layer_weights + self.sizes.head_weights

    @property
    def step_weight_bytes(self) -> int:
        """Bytes of `step_weights` in bfloat16."""
        return BFLOAT16_BYTES * self.step_weights

    def decode_roofline(self, batch: int, context: float, bandwidth: float, flops_per_second: float) -> float:
        """Return the least seconds of a decode step.

        Args:
            batch: sequences of one new token each.
            context: tokens of each sequence in the KV cache, the new one included.
            bandwidth: bytes per second.
            flops_per_second: of matrix products.

        The weights are read while the products run; the KV cache is read besides.
        """
        weights = max(self.step_weight_bytes / bandwidth, 2 * self.step_weights * batch / flops_per_second)
        return weights + batch * context * self.sizes.kv_bytes(1) / bandwidth

    def prefill_flops(self, num_tokens: int) -> int:
        """Return the operations of the prefill of one prompt, whose last token alone passes the lm_head."""
        sizes = self.sizes
        pairs = num_tokens * (num_tokens + 1) // 2
        return 2 * (sizes.layer_weights * num_tokens + sizes.head_weights) + sizes.attention_flops(pairs)


LLAMA_8B = BenchShape("Llama-3.1-8B", {
    **NO_EOS, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14_336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128_256, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0,
    "tie_word_embeddings": False,
})  # fmt: skip
QWEN3_06B = BenchShape("Qwen3-0.6B", {
    **NO_EOS, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024,
    "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 151_936, "max_position_embeddings": 40_960, "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0, "tie_word_embeddings": True,
})  # fmt: skip
_TINY = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 300, "max_position_embeddings": 256,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSizes:
    """What is measured, in tokens unless said otherwise.

    Attributes:
        large, small: the two models.
        batches: sequences of the decode steps, in the order in which they are measured.
        context: mean length of a sequence in a decode step, the new token included.
        num_steps: decode steps that are timed; as many as a quarter of them run before.
        prefill: tokens of the prompt.
        copy_bytes: bytes of the copied tensor.
        gemm: rows, columns and inner dimension of the timed matrix product.
        requests, lengths: of the mixed workload; prompts and outputs are drawn from the same range.
        baseline_requests, baseline_outputs: of its shorter version for transformers: the first requests, and the most
            output tokens of each.
    """

    large: BenchShape
    small: BenchShape
    batches: tuple[int, ...]
    context: int
    num_steps: int
    prefill: int
    copy_bytes: int
    gemm: int
    requests: int
    lengths: tuple[int, int]
    baseline_requests: int
    baseline_outputs: int

    @property
    def max_model_len(self) -> int:
        """Longest sequence of all parts."""
        return max(self.prefill, self.context + 2 * self.num_steps, 2 * self.lengths[1]) + 1


SIZES = {
    "full": BenchSizes(
        large=LLAMA_8B, small=QWEN3_06B, batches=(64, 256, 1), context=1024, num_steps=32, prefill=4096,
        copy_bytes=4 * 2**30, gemm=8192, requests=256, lengths=(100, 1024), baseline_requests=64, baseline_outputs=256,
    ),
    "tiny": BenchSizes(
        large=BenchShape("tiny Llama", {**LLAMA_8B.config, **_TINY}),
        small=BenchShape("tiny Qwen3", {**QWEN3_06B.config, **_TINY}), batches=(3, 1), context=24, num_steps=4,
        prefill=40, copy_bytes=2**16, gemm=32, requests=5, lengths=(4, 12), baseline_requests=3, baseline_outputs=6,
    ),
}  # fmt: skip
"""By the name of the option --shapes; "tiny" runs every part in seconds on a CPU."""
